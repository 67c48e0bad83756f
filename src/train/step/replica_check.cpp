#include "train/step/replica_check.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/diagnosis/fingerprint_check.hpp"
#include "comm/mpi/exchange.hpp"
#include "comm/transports/messages.hpp"
#include "device/device.hpp"

namespace llamesh::train {
namespace {

constexpr std::int64_t compared_numel = 1 << 21;  // 8 MiB

bool contains(const std::vector<int>& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

/// Compares hashes on the ranks `members`, which have the same shards.
Mismatch vote(std::size_t shards, const std::vector<int>& members,
              const std::function<std::uint64_t(int)>& hash_of) {
  std::vector<std::uint64_t> hashes;
  for (const int rank : members) hashes.push_back(hash_of(rank));
  const auto minority = comm::minority_of(hashes);
  Mismatch result{.shards = shards, .differ = {}, .agree = {}};
  for (std::size_t i = 0; i < members.size(); ++i) {
    const bool differs = contains(minority, static_cast<int>(i));
    (differs ? result.differ : result.agree).push_back(members[i]);
  }
  return result;
}

}  // namespace

std::vector<Mismatch> find_mismatches(std::span<const std::uint64_t> hashes,
                                      std::span<const comm::AxisSet> replicas,
                                      const comm::ParallelDims& dims) {
  std::vector<Mismatch> found;
  for (std::size_t g = 0; g < replicas.size(); ++g) {
    for (int rank = 0; rank < dims.ranks(); ++rank) {
      const auto members = dims.group(replicas[g], rank);
      if (members.front() != rank) continue;
      auto result = vote(g, members, [&](int member) {
        return hashes[static_cast<std::size_t>(member) * replicas.size() + g];
      });
      if (!result.differ.empty()) found.push_back(std::move(result));
    }
  }
  return found;
}

ReplicaCheck::ReplicaCheck(const comm::Communicator& world, const Setup& setup,
                           comm::DeviceMesh& mesh, Trainer& trainer)
    : world_(world), setup_(setup), mesh_(mesh), trainer_(trainer), state_(trainer.state()) {
  for (const auto& group : state_.groups()) {
    const auto all = group.replicas | mesh.dims().apart();
    shared_.push_back({group, group.frozen ? all : group.replicas, false});
    if (!state_.outer().empty() && !group.frozen) shared_.push_back({group, all, true});
  }
  if (setup.inputs.debug.replica_hash_every > 0)
    for (const auto& shared : shared_) mesh.group(shared.along);
}

bool ReplicaCheck::has_replicas(const Shared& shared) const {
  return mesh_.dims().group_size(shared.along) > 1;
}

std::string ReplicaCheck::describe() const {
  const auto every = setup_.inputs.debug.replica_hash_every;
  if (every == 0) return "";
  std::size_t compared = 0;
  for (const auto& shared : shared_)
    if (has_replicas(shared) && !shared.outer) compared += shared.group.units.size();
  return fmt::format("replicas are compared every {} steps: {} of {} units have some{}", every,
                     compared, state_.layout().units().size(),
                     state_.outer().empty()
                         ? ""
                         : "; of those that train apart, the weights of their latest exchange");
}

bool ReplicaCheck::due() const {
  const auto every = setup_.inputs.debug.replica_hash_every;
  return every > 0 && trainer_.step() % every == 0;
}

std::vector<std::string> ReplicaCheck::check() {
  return checked_ == trainer_.step() ? std::vector<std::string>() : check_again();
}

std::vector<std::string> ReplicaCheck::check_again() {
  if (setup_.inputs.debug.replica_hash_every == 0) return {};
  trainer_.settle();
  std::vector<comm::AxisSet> along;
  for (const auto& shared : shared_) along.push_back(shared.along);
  const auto found = find_mismatches(hashes_of_all(), along, mesh_.dims());
  checked_ = trainer_.step();
  if (found.empty()) return {};
  const auto undecided = [](const Mismatch& mismatch) { return mismatch.agree.empty(); };
  if (setup_.inputs.debug.on_mismatch == OnMismatch::stop || std::ranges::any_of(found, undecided))
    stop(found);
  std::vector<std::string> lines;
  for (const auto& mismatch : found) {
    heal(mismatch);
    lines.push_back(
        fmt::format("after step {}: {}; it is healed: they are now those of rank {}, but its "
                    "contribution to gradients since the previous comparison may have been wrong",
                    trainer_.step(), describe(mismatch), mismatch.agree.front()));
  }
  world_.barrier("healed replicas");  // ranks on a node gather from one another's memory
  trainer_.on_master_weights_loaded();
  return lines;
}

/// Visits this rank's shards: master weights and moments in a group, or its frozen weights, or what
/// replicas that train apart share, in pieces of bounded size.
void ReplicaCheck::for_each_piece(const Shared& shared,
                                  const std::function<void(const Tensor&)>& visit) const {
  const auto in_pieces = [&](const Tensor& shard) {
    for (std::int64_t at = 0; at < shard.numel(); at += compared_numel)
      visit(shard.slice(at, std::min(compared_numel, shard.numel() - at)));
  };
  for (const auto u : shared.group.held) {
    if (shared.group.frozen) {
      in_pieces(state_.frozen().shards[u]);
      continue;
    }
    if (!shared.outer) in_pieces(state_.masters().shards[u]);
    for (const auto& tensor : shared.outer ? state_.outer() : state_.moments())
      in_pieces(tensor.shards[u]);
  }
}

device::MemoryKind ReplicaCheck::memory_of(const Shared& shared) const {
  return shared.group.frozen ? state_.frozen().memory : state_.memory();
}

std::uint64_t ReplicaCheck::hash(const Shared& shared) {
  if (!has_replicas(shared)) return 0;
  auto& stream = device::stream_of(memory_of(shared));
  RunningHash hash;
  for_each_piece(shared, [&](const Tensor& piece) { hasher_.add(hash, stream, piece); });
  return hash.value();
}

/// Gathers each rank's hashes, rank after rank.
std::vector<std::uint64_t> ReplicaCheck::hashes_of_all() {
  std::vector<std::uint64_t> mine;
  for (const auto& shared : shared_) mine.push_back(hash(shared));
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(world_.size()));
  comm::all_gather_bytes(world_, std::as_bytes(std::span(mine)),
                         std::as_writable_bytes(std::span(all)), "the hashes of replicas");
  return all;
}

/// Formats "rank 2 on node1 differs in weights or moments from ranks 0, 1, 3, ...".
std::string ReplicaCheck::describe(const Mismatch& mismatch) const {
  std::vector<std::string> named;
  for (const int rank : mismatch.differ)
    named.push_back(fmt::format("rank {} on {}", rank,
                                setup_.topology.host_of[static_cast<std::size_t>(rank)]));
  const auto axes = comm::to_string(shared_[mismatch.shards].along, mesh_.dims());
  if (mismatch.agree.empty())
    return fmt::format(
        "{} hold the same shards along {}, but differ in their weights or moments, and no majority "
        "says which is right",
        fmt::join(named, ", "), axes);
  return fmt::format(
      "{} differ{} in weights or moments from ranks {}, which hold the same shards along {}",
      fmt::join(named, ", "), named.size() == 1 ? "s" : "", fmt::join(mismatch.agree, ", "), axes);
}

/// Throws; the first rank that differs reports all differences, so that failure.json names it.
void ReplicaCheck::stop(const std::vector<Mismatch>& found) const {
  const auto* reported = &found.front();
  for (const auto& mismatch : found)
    if (reported->agree.empty() && !mismatch.agree.empty()) reported = &mismatch;
  comm::agree(world_, [&] {
    if (world_.rank() != reported->differ.front()) return;
    std::vector<std::string> lines;
    for (const auto& mismatch : found) lines.push_back(describe(mismatch));
    fail(ExitCode::stopped_early,
         "after step {}: {}; a machine's memory is faulty, or this is a bug: nothing is saved, and "
         "the next launch continues from the newest checkpoint",
         trainer_.step(), fmt::join(lines, "; "));
  });
}

/// Replaces differing shards with those of the first rank that agrees. Collective over the
/// ranks that share those.
void ReplicaCheck::heal(const Mismatch& mismatch) {
  const bool differs = contains(mismatch.differ, world_.rank());
  if (!differs && !contains(mismatch.agree, world_.rank())) return;
  const auto& shared = shared_[mismatch.shards];
  const auto& replicas = mesh_.group(shared.along);
  auto& stream = device::stream_of(memory_of(shared));
  const auto rank_in_group = [&](int rank) {
    return mesh_.dims().rank_in_group(shared.along, rank);
  };
  const int root = mismatch.agree.front();
  for_each_piece(shared, [&](const Tensor& piece) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(piece.bytes()));
    std::vector<comm::OutgoingMessage> outgoing;
    std::vector<comm::IncomingMessage> incoming;
    if (differs) incoming.push_back({rank_in_group(root), bytes});
    if (world_.rank() == root) {
      device::download(stream, bytes.data(), piece);
      for (const int rank : mismatch.differ) outgoing.push_back({rank_in_group(rank), bytes});
    }
    comm::exchange_messages(replicas, outgoing, incoming, "healed shards");
    if (differs) device::upload(stream, piece, bytes.data());
  });
}

}  // namespace llamesh::train
