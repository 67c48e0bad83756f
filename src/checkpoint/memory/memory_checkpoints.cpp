#include "checkpoint/memory/memory_checkpoints.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "checkpoint/memory/memory_folder.hpp"
#include "checkpoint/memory/snapshot_exchange.hpp"
#include "comm/mpi/backoff.hpp"
#include "comm/mpi/session.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"

namespace llamesh::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Broadcasts rank 0's number.
std::uint64_t broadcast_identity(const comm::Communicator& world,
                                 const std::function<std::uint64_t()>& make) {
  return from_hex(comm::on_rank_0(world, [&] { return to_hex(make()); }));
}

/// Removes the files in a node's folder that belong to no kept snapshot, except the owner's mark.
void remove_others(const fs::path& folder, const std::vector<KeptSnapshot>& kept, int node) {
  std::set<std::string> names{owner_mark()};
  for (const auto& snapshot : kept)
    for (int slot = 0; snapshot.node == node && slot < snapshots_per_key; ++slot)
      names.insert(snapshot_name(snapshot.key, slot));
  std::error_code ignored;
  for (const auto& path : files_in(folder))
    if (!names.contains(path.filename().string())) fs::remove_all(path, ignored);
}

}  // namespace

MemorySnapshot& MemoryCheckpoints::OwnSnapshots::older() {
  return *std::ranges::min_element(slots, {}, &MemorySnapshot::step);
}

MemorySnapshot& MemoryCheckpoints::OwnSnapshots::newer() {
  return *std::ranges::max_element(slots, {}, &MemorySnapshot::step);
}

MemoryCheckpoints::MemoryCheckpoints(const fs::path& run_folder,
                                     const MemoryCheckpointOptions& options,
                                     const comm::Topology& topology,
                                     const comm::Communicator& world)
    : options_(options),
      topology_(topology),
      world_(world.duplicate()),
      copying_(world.duplicate()) {
  const auto rank = static_cast<std::size_t>(world_.rank());
  leads_node_ = topology_.local_rank_of[rank] == 0;
  prefix_ = comm::on_rank_0(world_, [&] { return memory_folder_prefix(run_folder); });
  folder_ = prefix_ + memory_node_name(topology_, topology_.node_of[rank]);
  on_host_ = fs::path(folder_).replace_extension(".").string();
  run_ = broadcast_identity(world_, [&] { return identity_of_run(run_folder / "checkpoints"); });
  launch_ = broadcast_identity(world_, random_identity);
}

MemoryCheckpoints::~MemoryCheckpoints() {
  if (thread_.joinable()) {
    if (std::uncaught_exceptions() > 0) comm::stop_waiting();
    thread_.join();
  }
  if (error_ && std::uncaught_exceptions() == 0)
    spdlog::warn("the latest memory checkpoint has no replica on another node: an exchange failed");
}

void MemoryCheckpoints::reserve(const State& state, std::int64_t json_bytes) {
  wait();
  key_ = key_of(state);
  kept_ = kept_snapshots(gather_keys(state), topology_, options_.partner);
  try {
    take_memory(std::max(snapshot_json_bytes, 2 * json_bytes));
  } catch (...) {  // on every rank; nothing may stay behind on the nodes that had room
    own_.clear();
    std::error_code ignored;
    if (leads_node_ && !resumed_) fs::remove_all(folder_, ignored);
    throw;
  }
}

bool MemoryCheckpoints::has_remote_replicas() const {
  return std::ranges::any_of(kept_, &KeptSnapshot::is_remote_replica);
}

std::string MemoryCheckpoints::describe() const {
  const auto bytes = std::ranges::max(bytes_per_node(kept_, topology_.nodes));
  const auto copies = std::ranges::count_if(kept_, &KeptSnapshot::is_remote_replica);
  const auto second = copies > 0             ? fmt::format("{} replicas on other nodes", copies)
                      : topology_.nodes == 1 ? std::string("no second copy (one node)")
                      : options_.partner == RemoteReplicas::off
                          ? std::string("no replicas on other nodes")
                          : std::string("replicas are on other nodes");
  return fmt::format("{:.2f} GiB per node in /dev/shm; {}",
                     static_cast<double>(bytes) / (std::int64_t{1} << 30), second);
}

/// Returns the folders of the nodes into which this launch divides the host. An earlier one may
/// have divided it into more (mesh.ranks_per_node).
std::set<fs::path> MemoryCheckpoints::folders_on_host() const {
  const auto rank = static_cast<std::size_t>(world_.rank());
  std::set<int> nodes;
  for (std::size_t r = 0; r < topology_.host_of.size(); ++r)
    if (topology_.host_of[r] == topology_.host_of[rank]) nodes.insert(topology_.node_of[r]);
  std::set<fs::path> folders;
  for (std::size_t place = 0; place < nodes.size(); ++place)
    folders.insert(on_host_ + std::to_string(place));
  return folders;
}

/// Opens the snapshots that this rank keeps. Collective.
void MemoryCheckpoints::take_memory(std::int64_t json_bytes) {
  const int node = topology_.node_of[static_cast<std::size_t>(world_.rank())];
  comm::agree(world_, [&] {
    if (!leads_node_) return;
    remove_memory_folders(on_host_, folders_on_host());
    make_memory_folder(folder_);
    take_ownership(folder_);
    remove_others(folder_, kept_, node);
  });
  own_.clear();
  json_room_ = json_bytes;
  comm::agree(world_, [&] {
    for (const auto& kept : kept_) {
      if (kept.rank != world_.rank()) continue;
      auto& own = own_.emplace_back(OwnSnapshots{kept, {}});
      for (int slot = 0; slot < snapshots_per_key; ++slot) {
        auto& snapshot = own.slots.emplace_back(folder_ / snapshot_name(kept.key, slot),
                                                kept.key.bytes, json_bytes);
        const auto header = snapshot.header();
        const bool usable =
            header && header->run == run_ &&
            (header->launch == launch_ ||
             (resumed_ && header->launch == resumed_->launch && header->step <= resumed_->step));
        if (!usable) snapshot.invalidate();
      }
    }
  });
}

void MemoryCheckpoints::save(const State& state, const TrainState& progress,
                             std::int64_t disk_step) {
  wait();
  const auto text = to_text(progress);
  if (std::ssize(text) > json_room_) take_memory(2 * std::ssize(text));
  for (auto& own : own_)
    if (!own.kept.is_remote_replica())
      own.older().fill(state, text,
                       {.run = run_,
                        .launch = launch_,
                        .step = progress.step,
                        .disk_step = disk_step,
                        .key = key_});
  if (!has_remote_replicas()) return;
  thread_ = std::thread([this, json_bytes = std::ssize(text)] {
    try {
      send_copies(json_bytes);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

/// Sends this rank's newest snapshots to other nodes, and receives theirs. Every rank calls it, in
/// its thread.
void MemoryCheckpoints::send_copies(std::int64_t json_bytes) {
  SnapshotExchange exchange;
  for (const auto& kept : kept_) {
    if (!kept.is_remote_replica()) continue;
    for (auto& own : own_) {
      if (own.kept == kept) exchange.receive(own.older(), json_bytes, kept.from);
      if (own.kept.key == kept.key && kept.from == world_.rank())
        exchange.send(own.newer(), kept.rank);
    }
  }
  exchange.run(copying_, "remote replicas of a memory checkpoint");
}

void MemoryCheckpoints::wait() {
  if (!has_remote_replicas()) return;
  if (thread_.joinable()) thread_.join();
  // Throws on this rank alone, at once: ranks that still wait for its replicas cannot reach an
  // agreement.
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  world_.barrier("remote replicas of a memory checkpoint");
}

void MemoryCheckpoints::remove() {
  wait();
  own_.clear();
  world_.barrier("memory checkpoints are not needed any more");
  if (leads_node_) remove_memory_folders(on_host_);
}

}  // namespace llamesh::checkpoint
