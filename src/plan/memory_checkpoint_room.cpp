#include "plan/memory_checkpoint_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "checkpoint/memory/memory_room.hpp"
#include "checkpoint/memory/snapshot_plan.hpp"
#include "core/error.hpp"
#include "device/device.hpp"

namespace llamesh::plan {
namespace {

/// Returns keys that are equal for ranks with the same shards. They differ from those in snapshots.
std::vector<checkpoint::SnapshotKey> keys_of(const train::Setup& setup, std::int64_t shard_bytes) {
  const auto& dims = setup.mesh;
  const auto divided = dims.all() & ~setup.layout->replicated_axes();
  std::vector<checkpoint::SnapshotKey> keys;
  for (int rank = 0; rank < dims.ranks(); ++rank)
    keys.push_back({static_cast<std::uint64_t>(dims.rank_in_group(divided, rank)), shard_bytes});
  return keys;
}

/// Returns advice on using less memory: "checkpoint.memory.partner=off needs ...".
std::string advice(const train::PlannedMemory& planned, std::int64_t room) {
  const auto without = planned.memory_checkpoints - planned.remote_replicas;
  if (planned.remote_replicas > 0 && without <= room)
    return fmt::format(
        "checkpoint.memory.partner=off needs {}, checkpoint.memory.every_steps=0 none", without);
  return "use more nodes, or checkpoint.memory.every_steps=0, which needs none";
}

}  // namespace

std::int64_t memory_checkpoint_bytes(const train::Setup& setup, int rank, std::int64_t shard_bytes,
                                     checkpoint::RemoteReplicas partner) {
  if (!setup.inputs.checkpoint.memory.enabled()) return 0;
  const auto& [node_of, local_rank_of, host_of, nodes] = setup.topology;
  const auto kept =
      checkpoint::kept_snapshots(keys_of(setup, shard_bytes), setup.topology, partner);
  const auto by_node = checkpoint::bytes_per_node(kept, nodes);
  std::int64_t bytes = 0;
  for (std::size_t r = 0; r < node_of.size(); ++r)  // a host may have several nodes
    if (local_rank_of[r] == 0 && host_of[r] == host_of[static_cast<std::size_t>(rank)])
      bytes += by_node[static_cast<std::size_t>(node_of[r])];
  return bytes;
}

MemoryCheckpointRoom memory_checkpoint_room(const train::Setup& setup,
                                            const train::PlannedMemory& planned, int rank) {
  const auto& hosts = setup.topology.host_of;
  const auto& host = hosts[static_cast<std::size_t>(rank)];
  const auto of_device = device::kind() == device::Kind::cpu ? planned.peak : 0;
  return {.host = host,
          .limit = setup.inputs.checkpoint.memory.limit,
          .shared_memory = checkpoint::room_for_snapshots(setup.inputs.run.folder),
          .left_by_steps = device::host_memory_bytes() -
                           std::ranges::count(hosts, host) * (of_device + planned.on_host)};
}

void check_memory_checkpoints(const train::PlannedMemory& planned,
                              const MemoryCheckpointRoom& room) {
  const auto needed = planned.memory_checkpoints;
  if (needed == 0) return;
  const auto problem = [&](std::int64_t available, const std::string& why) {
    return fmt::format(
        "memory checkpoints need {} bytes on {}, {} of them for replicas on other nodes, but {}; "
        "{}",
        needed, room.host, planned.remote_replicas, why, advice(planned, available));
  };
  const auto check_host = [&](std::int64_t available, const std::string& why) {
    validate_host(needed <= available, "{}", problem(available, why));
  };
  validate(room.limit == 0 || needed <= room.limit, "{}",
           problem(room.limit, fmt::format("checkpoint.memory.limit is {}", room.limit)));
  check_host(room.shared_memory,
             fmt::format("/dev/shm has {} there (mount -o remount,size=... enlarges it)",
                         room.shared_memory));
  check_host(room.left_by_steps,
             fmt::format("its ranks leave {} of the job's memory there", room.left_by_steps));
}

}  // namespace llamesh::plan
