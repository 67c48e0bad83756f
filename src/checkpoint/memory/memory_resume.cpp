#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <map>
#include <ranges>
#include <utility>

#include "checkpoint/memory/memory_checkpoints.hpp"
#include "checkpoint/memory/memory_folder.hpp"
#include "checkpoint/memory/snapshot_exchange.hpp"
#include "comm/mpi/exchange.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"

// Resuming from memory.

namespace llamesh::checkpoint {
namespace {

/// A state that snapshots may hold, with or without frozen weights, and the ranks' keys for it.
struct Candidate {
  State state;
  bool has_frozen;  ///< all that the run has
  std::vector<SnapshotKey> keys;
};

/// The newest set, and the state that it holds.
struct Choice {
  const Candidate* holds;
  SnapshotSet set;
};

std::int64_t free_bytes(const std::filesystem::path& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  return error ? 0 : static_cast<std::int64_t>(space.available);
}

/// Returns the newest step that was on disk when any of the snapshots was made; -1: none.
std::int64_t newest_noted(std::span<const FoundSnapshot> found) {
  std::int64_t newest = -1;
  for (const auto& snapshot : found) newest = std::max(newest, snapshot.disk_step);
  return newest;
}

std::optional<Choice> newest_of(const std::vector<Candidate>& candidates,
                                std::span<const FoundSnapshot> found,
                                const comm::Topology& topology) {
  std::optional<Choice> newest;
  for (const auto& candidate : candidates) {
    auto set = newest_set(found, candidate.keys, topology);
    if (set && (!newest || set->step > newest->set.step))
      newest = Choice{&candidate, std::move(*set)};
  }
  return newest;
}

/// Logs lines of the form "PATH is not used: REASON", and what is used instead.
void warn_of(const std::vector<std::string>& problems, const std::optional<Choice>& instead,
             std::int64_t disk_step) {
  const auto next = instead ? fmt::format("goes on from step {} in memory", instead->set.step)
                    : disk_step >= 0 ? fmt::format("goes on from step {} on disk", disk_step)
                                     : std::string("begins anew: it has no other checkpoint");
  for (const auto& problem : problems)
    spdlog::warn("the memory checkpoint {}; the run {}", problem, next);
}

/// Returns true if no lower rank on its node shares the rank's snapshot.
bool is_first_with_snapshot(const SnapshotSet& set, std::size_t rank,
                            const comm::Topology& topology) {
  for (std::size_t r = 0; r < rank; ++r)
    if (topology.node_of[r] == topology.node_of[rank] &&
        set.snapshots[r].key == set.snapshots[rank].key)
      return false;
  return true;
}

/// Returns the TrainState of a snapshot. Throws exit 74 if anything in the snapshot is wrong.
TrainState checked_progress(const MemorySnapshot& snapshot, bool has_frozen) {
  if (!snapshot.is_intact())
    fail(ExitCode::io_failure, "it is damaged: the hashes of its bytes do not match");
  auto progress = snapshot.progress();
  if (progress.base.has_value() == has_frozen)
    fail(ExitCode::io_failure, "{}",
         has_frozen ? "it holds all weights, but its JSON names a base model for the frozen ones"
                    : "it holds no frozen weights, and its JSON names no base model for them");
  return progress;
}

}  // namespace

std::filesystem::path MemoryCheckpoints::path_of(const FoundSnapshot& snapshot) const {
  return std::filesystem::path(prefix_ + memory_node_name(topology_, snapshot.node)) /
         snapshot_name(snapshot.key, snapshot.slot);
}

/// Gathers the snapshots on all nodes.
std::vector<FoundSnapshot> MemoryCheckpoints::find_snapshots() const {
  std::vector<FoundSnapshot> mine;
  comm::agree(world_, [&] {
    if (leads_node_)
      mine =
          snapshots_in(folder_, run_, topology_.node_of[static_cast<std::size_t>(world_.rank())]);
  });
  return comm::all_gather_lists(world_, mine);
}

/// Gathers the lines about bad headers on all nodes.
std::vector<std::string> MemoryCheckpoints::find_bad_headers() const {
  const auto mine = leads_node_ ? bad_headers_in(folder_, run_) : std::vector<std::string>();
  std::vector<std::string> lines;
  for (const auto& of_rank : world_.all_gather(fmt::format("{}", fmt::join(mine, "\n"))))
    for (const auto& line : of_rank | std::views::split('\n'))
      if (!line.empty()) lines.emplace_back(line.begin(), line.end());
  return lines;
}

/// Removes the snapshots whose size contradicts their hash, which includes it. Returns a line for
/// each.
std::vector<std::string> MemoryCheckpoints::drop_other_sizes(
    std::span<const SnapshotKey> keys, std::vector<FoundSnapshot>& found) const {
  std::map<std::uint64_t, std::int64_t> sizes;
  for (const auto& key : keys) sizes[key.hash] = key.bytes;
  std::vector<std::string> lines;
  std::erase_if(found, [&](const FoundSnapshot& snapshot) {
    const auto size = sizes.find(snapshot.key.hash);
    if (size == sizes.end() || size->second == snapshot.key.bytes) return false;
    lines.push_back(fmt::format("{} is not used: its shards have {} bytes, by their key {}",
                                path_of(snapshot).string(), snapshot.key.bytes, size->second));
    return true;
  });
  return lines;
}

std::optional<TrainState> MemoryCheckpoints::resume(const State& state, std::int64_t disk_step,
                                                    const Accept& accept) {
  auto found = find_snapshots();
  auto problems = find_bad_headers();
  std::erase_if(found, [&](const FoundSnapshot& snapshot) { return snapshot.step <= disk_step; });
  if (found.empty() && problems.empty()) return {};
  if (const auto noted = newest_noted(found); noted > disk_step) {
    if (world_.rank() == 0)
      spdlog::warn(
          "memory checkpoints are not used: they were made with step {} on disk, but the newest "
          "there is now step {}",
          noted, std::max<std::int64_t>(disk_step, 0));
    return {};
  }
  std::vector<Candidate> candidates{{state, true, gather_keys(state)}};
  if (const auto trained = state.trained(); key_of(trained) != key_of(state))
    candidates.push_back({trained, false, gather_keys(trained)});
  for (const auto& candidate : candidates)
    for (auto& line : drop_other_sizes(candidate.keys, found)) problems.push_back(std::move(line));
  auto choice = newest_of(candidates, found, topology_);
  if (!choice && problems.empty() && world_.rank() == 0)
    spdlog::warn(
        "memory checkpoints are not used: no step after the newest one on disk has the shards of "
        "all ranks (they were lost with a node, or the mesh or the model has changed)");
  while (true) {
    if (world_.rank() == 0) warn_of(problems, choice, disk_step);
    if (!choice) return {};
    if (!receive(choice->set, found)) {
      if (world_.rank() == 0)
        spdlog::warn(
            "memory checkpoints are not used: a node has too little room in /dev/shm to receive "
            "its snapshots of step {} from other nodes",
            choice->set.step);
      return {};
    }
    problems = drop_bad(choice->set, choice->holds->has_frozen, found);
    if (problems.empty()) break;
    choice = newest_of(candidates, found, topology_);
  }
  auto progress = load(choice->set, choice->holds->state, accept);
  resumed_ = std::move(choice->set);
  return progress;
}

std::vector<SnapshotKey> MemoryCheckpoints::gather_keys(const State& state) const {
  return comm::all_gather(world_, key_of(state), "the keys of memory checkpoints");
}

/// Returns this node's copy of a snapshot in a set.
MemorySnapshot MemoryCheckpoints::open_snapshot(const FoundSnapshot& snapshot) const {
  for (int slot = 0; slot < snapshots_per_key; ++slot) {
    const auto path = folder_ / snapshot_name(snapshot.key, slot);
    const auto header = MemorySnapshot::read_header(path);
    if (header && header->run == run_ && header->key == snapshot.key &&
        header->launch == snapshot.launch && header->step == snapshot.step &&
        header->json_bytes == snapshot.json_bytes)
      return {path, snapshot.key.bytes, snapshot.json_bytes};
  }
  fail(ExitCode::io_failure, "the memory checkpoint of step {} in {} has disappeared",
       snapshot.step, folder_.string());
}

/// Opens the slot for a received snapshot: an empty one, else one whose step cannot be used, else
/// the older one.
MemorySnapshot MemoryCheckpoints::open_slot_for(const FoundSnapshot& snapshot) const {
  make_memory_folder(folder_);
  const auto rank_of = [&](int slot) -> std::int64_t {
    const auto header = MemorySnapshot::read_header(folder_ / snapshot_name(snapshot.key, slot));
    if (!header) return -2;
    return header->step > snapshot.step ? -1 : header->step;
  };
  const int slot = rank_of(0) <= rank_of(1) ? 0 : 1;
  return {folder_ / snapshot_name(snapshot.key, slot), snapshot.key.bytes, snapshot.json_bytes};
}

/// Makes room for the snapshots that this host's nodes receive. If there is too little, other
/// steps' snapshots are removed, from `found` too. Returns false on every rank if a host still has
/// too little.
bool MemoryCheckpoints::make_room(const std::vector<SnapshotTransfer>& transfers,
                                  const SnapshotSet& set, std::vector<FoundSnapshot>& found) const {
  constexpr std::int64_t page = 4096;
  const auto is_of_set = [&](const auto& snapshot) {
    return snapshot.launch == set.launch && snapshot.step == set.step;
  };
  const auto& host = topology_.host_of[static_cast<std::size_t>(world_.rank())];
  std::int64_t needed = 0;
  for (const auto& transfer : transfers)
    if (topology_.host_of[static_cast<std::size_t>(transfer.to)] == host)
      needed += snapshot_bytes(transfer.snapshot.key.bytes, transfer.snapshot.json_bytes) + page;
  const bool is_short = leads_node_ && needed > 0 && needed > free_bytes(folder_.parent_path());
  comm::agree(world_, [&] {
    if (!is_short) return;
    for (const auto& path : files_in(folder_)) {
      const auto header = MemorySnapshot::read_header(path);
      std::error_code ignored;
      if (!header || header->run != run_ || !is_of_set(*header))
        std::filesystem::remove(path, ignored);
    }
  });
  if (world_.max(std::int64_t{is_short}, "room for memory checkpoints") == 0) return true;
  std::erase_if(found, [&](const FoundSnapshot& snapshot) { return !is_of_set(snapshot); });
  const bool enough = !leads_node_ || needed <= free_bytes(folder_.parent_path());
  return world_.min(std::int64_t{enough}, "room for memory checkpoints") != 0;
}

/// Brings the set's snapshots to all nodes that need them. Returns false if a node has no room.
bool MemoryCheckpoints::receive(const SnapshotSet& set, std::vector<FoundSnapshot>& found) const {
  const auto transfers = transfers_of(set, topology_);
  if (transfers.empty()) return true;
  if (!make_room(transfers, set, found)) return false;
  std::deque<MemorySnapshot> snapshots;
  SnapshotExchange exchange;
  comm::agree(world_, [&] {
    for (const auto& [snapshot, from, to] : transfers) {
      if (world_.rank() == to)
        exchange.receive(snapshots.emplace_back(open_slot_for(snapshot)), snapshot.json_bytes,
                         from);
      else if (world_.rank() == from)
        exchange.send(snapshots.emplace_back(open_snapshot(snapshot)), to);
    }
  });
  exchange.run(world_, "memory checkpoints");
  std::int64_t bytes = 0;
  for (const auto& transfer : transfers) bytes += transfer.snapshot.key.bytes;
  spdlog::info("memory checkpoints of step {}: {} of them ({:.2f} GiB) came from other nodes",
               set.step, transfers.size(), static_cast<double>(bytes) / (1 << 30));
  return true;
}

/// Checks the set's snapshots on each node, and that all ranks' JSON is the same. Removes bad ones
/// and their sources from `found`, or the whole set if the JSON differs. Returns a line for each.
std::vector<std::string> MemoryCheckpoints::drop_bad(const SnapshotSet& set, bool has_frozen,
                                                     std::vector<FoundSnapshot>& found) const {
  const auto rank = static_cast<std::size_t>(world_.rank());
  std::string reason;
  std::uint64_t text = 0;  // hash; 0 if another rank checks the snapshot
  comm::agree(
      world_,
      [&] {
        if (!is_first_with_snapshot(set, rank, topology_)) return;
        auto snapshot = open_snapshot(set.snapshots[rank]);
        try {
          const auto progress = to_text(checked_progress(snapshot, has_frozen));
          text = hash_of(progress.data(), progress.size());
        } catch (const Error& bad) {
          reason = bad.what();
          snapshot.invalidate();
        }
      },
      "whether memory checkpoints are intact");
  std::vector<std::string> lines;
  const auto reasons = world_.all_gather(reason);
  for (std::size_t r = 0; r < reasons.size(); ++r) {
    if (reasons[r].empty()) continue;
    lines.push_back(
        fmt::format("{} is not used: {}", path_of(set.snapshots[r]).string(), reasons[r]));
    std::erase(found, set.snapshots[r]);
  }
  const auto texts = comm::all_gather(world_, text, "the texts of memory checkpoints");
  const auto other = std::ranges::find_if(
      texts, [&](std::uint64_t hash) { return hash != 0 && hash != texts.front(); });
  if (!lines.empty() || other == texts.end()) return lines;
  std::erase_if(found, [&](const FoundSnapshot& snapshot) {
    return snapshot.launch == set.launch && snapshot.step == set.step;
  });
  const auto at = static_cast<std::size_t>(other - texts.begin());
  return {fmt::format("{} is not used: its JSON differs from that of {}",
                      path_of(set.snapshots[at]).string(),
                      path_of(set.snapshots.front()).string())};
}

TrainState MemoryCheckpoints::load(const SnapshotSet& set, const State& state,
                                   const Accept& accept) const {
  std::optional<MemorySnapshot> snapshot;
  TrainState progress;
  comm::agree(world_, [&] {
    snapshot.emplace(open_snapshot(set.snapshots[static_cast<std::size_t>(world_.rank())]));
    progress = snapshot->progress();
    if (accept && world_.rank() == 0) accept(progress);
  });
  snapshot->load(state);
  return progress;
}

}  // namespace llamesh::checkpoint
