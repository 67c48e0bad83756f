#include "plan/memory_checkpoint_room.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "checkpoint/format/state.hpp"
#include "checkpoint/memory/memory_folder.hpp"
#include "checkpoint/memory/memory_room.hpp"
#include "checkpoint/memory/memory_snapshot.hpp"
#include "checkpoint/memory/snapshot_plan.hpp"
#include "comm/mesh/topology.hpp"
#include "device/simulated/simulation.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"
#include "train/engine/engine.hpp"

namespace llamesh::plan {
namespace {

using checkpoint::RemoteReplicas;
using sharding::Strategy;
using train::Inputs;
using train::PlannedMemory;
using train::Setup;

struct RoomCase {
  const char* name;
  int ranks;
  int per_machine;
  void (*change)(Inputs& in);
};

Setup room_setup(const RoomCase& launch) {
  Inputs in;
  in.model.hidden_size = 48;
  in.model.intermediate_size = 96;
  in.model.num_hidden_layers = 2;
  in.model.num_attention_heads = 8;
  in.model.num_key_value_heads = 2;
  in.model.head_dim = 8;
  in.model.vocab_size = 264;
  in.data.sequence_length = 24;
  in.sharding.strategy = Strategy::full_shard;
  in.train.micro_batch = 1;
  in.checkpoint.memory.every_steps = 3;
  launch.change(in);
  return train::plan_setup(
      in, comm::planned_topology(launch.ranks, launch.per_machine, in.mesh.ranks_per_node));
}

const RoomCase room_cases[] = {
    {"one node", 3, 3, [](Inputs&) {}},
    {"full shard", 6, 2, [](Inputs&) {}},
    {"a node with fewer ranks", 5, 2, [](Inputs&) {}},
    {"no replicas on other nodes", 6, 2,
     [](Inputs& in) { in.checkpoint.memory.partner = RemoteReplicas::off; }},
    {"two nodes on each host", 8, 4, [](Inputs& in) { in.mesh.ranks_per_node = 2; }},
    {"hybrid shard", 6, 2, [](Inputs& in) { in.sharding.strategy = Strategy::hybrid_shard; }},
    {"no shard", 4, 2, [](Inputs& in) { in.sharding.strategy = Strategy::no_shard; }},
    {"tensor", 8, 4, [](Inputs& in) { in.mesh.tensor = 2; }},
    {"experts", 8, 4,
     [](Inputs& in) {
       in.model.family = "mixtral";
       in.model.num_experts = 4;
       in.model.num_experts_per_tok = 2;
       in.mesh.expert = 2;
     }},
    {"Muon, moments in bf16", 4, 2,
     [](Inputs& in) {
       in.optimizer.name = optim::OptimizerName::muon;
       in.optimizer.moments = DType::bf16;
     }},
    {"LoRA", 4, 2, [](Inputs& in) { in.model.lora = model::Lora{.rank = 4}; }},
};

/// Returns the key of a rank's real shards.
checkpoint::SnapshotKey key_of_rank(const Setup& setup, int rank) {
  device::Hardware hardware;
  hardware.kind = device::Kind::cpu;
  const device::Simulation simulation(hardware);
  comm::CollectiveLog log;
  comm::DeviceMesh mesh(setup.topology, setup.mesh, rank, &log);
  const train::Engine engine(setup, mesh);
  return checkpoint::key_of(checkpoint::state_of(engine.state));
}

/// Returns the bytes on each node, by the keys of all ranks' shards.
std::vector<std::int64_t> bytes_by_keys(const Setup& setup, RemoteReplicas partner) {
  std::vector<checkpoint::SnapshotKey> keys;
  for (int rank = 0; rank < setup.mesh.ranks(); ++rank) keys.push_back(key_of_rank(setup, rank));
  return checkpoint::bytes_per_node(checkpoint::kept_snapshots(keys, setup.topology, partner),
                                    setup.topology.nodes);
}

TEST(MemoryCheckpointBytes, AreThoseOfTheSnapshotsThatEachHostKeeps) {
  for (const auto& launch : room_cases) {
    const auto setup = room_setup(launch);
    const auto& topology = setup.topology;
    const auto partner = setup.inputs.checkpoint.memory.partner;
    const auto all = bytes_by_keys(setup, partner);
    const auto without = bytes_by_keys(setup, RemoteReplicas::off);
    for (int rank = 0; rank < setup.mesh.ranks(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      std::int64_t on_host = 0, own = 0;
      for (std::size_t other = 0; other < topology.host_of.size(); ++other)
        if (topology.host_of[other] == topology.host_of[r] && topology.local_rank_of[other] == 0) {
          on_host += all[static_cast<std::size_t>(topology.node_of[other])];
          own += without[static_cast<std::size_t>(topology.node_of[other])];
        }
      const auto planned = plan_on_this_device(setup, rank, /*threads=*/1);
      EXPECT_EQ(planned.memory_checkpoints, on_host) << launch.name << ", rank " << rank;
      EXPECT_EQ(planned.remote_replicas, on_host - own) << launch.name << ", rank " << rank;
    }
  }
}

TEST(MemoryCheckpointBytes, AreTwoSnapshotsOfEachRankAndItsRemoteReplicas) {
  const std::int64_t shard_bytes = 1 << 20;
  const auto both = 2 * checkpoint::snapshot_bytes(shard_bytes);  // of the last two steps
  const auto bytes = [&](const RoomCase& launch, RemoteReplicas partner) {
    return memory_checkpoint_bytes(room_setup(launch), 0, shard_bytes, partner);
  };
  EXPECT_EQ(bytes(room_cases[0], RemoteReplicas::automatic), 3 * both) << "no other node";
  EXPECT_EQ(bytes(room_cases[1], RemoteReplicas::automatic), 4 * both);
  EXPECT_EQ(bytes(room_cases[1], RemoteReplicas::off), 2 * both);
  EXPECT_EQ(bytes(room_cases[2], RemoteReplicas::automatic), 3 * both)
      << "the last node has one rank";
  EXPECT_EQ(bytes(room_cases[5], RemoteReplicas::automatic), 2 * both)
      << "each node has all shards";
  EXPECT_EQ(bytes(room_cases[6], RemoteReplicas::automatic), both) << "the ranks of a node share";
  auto setup = room_setup(room_cases[1]);
  setup.inputs.checkpoint.memory.every_steps = 0;
  EXPECT_EQ(memory_checkpoint_bytes(setup, 0, shard_bytes, RemoteReplicas::automatic), 0);
}

std::string refusal(PlannedMemory planned, const MemoryCheckpointRoom& room) {
  return test::error_of([&] { check_memory_checkpoints(planned, room); });
}

TEST(MemoryCheckpointRoomTest, RefusesWhatDoesNotFitWithTheNumbers) {
  const PlannedMemory planned{.memory_checkpoints = 1000, .remote_replicas = 400};
  const MemoryCheckpointRoom room{
      .host = "n3", .limit = 1000, .shared_memory = 1000, .left_by_steps = 1000};
  EXPECT_NO_THROW(check_memory_checkpoints(planned, room));
  EXPECT_NO_THROW(check_memory_checkpoints({}, {.host = "n3", .left_by_steps = -1})) << "none";
  auto less = room;
  less.limit = 999;
  EXPECT_EQ(
      refusal(planned, less),
      "memory checkpoints need 1000 bytes on n3, 400 of them for replicas on other nodes, but "
      "checkpoint.memory.limit is 999; checkpoint.memory.partner=off needs 600, "
      "checkpoint.memory.every_steps=0 none");
  less = room;
  less.shared_memory = 599;
  EXPECT_EQ(
      refusal(planned, less),
      "memory checkpoints need 1000 bytes on n3, 400 of them for replicas on other nodes, but "
      "/dev/shm has 599 there (mount -o remount,size=... enlarges it); use more nodes, or "
      "checkpoint.memory.every_steps=0, which needs none");
  less = room;
  less.left_by_steps = -5;
  EXPECT_THROW(check_memory_checkpoints(planned, less), UnfitHost);
  EXPECT_NE(refusal(planned, less).find("its ranks leave -5 of the job's memory there"),
            std::string::npos);
  less = room;
  less.limit = 0;
  EXPECT_NO_THROW(check_memory_checkpoints(planned, less)) << "no limit";
}

TEST(MemoryCheckpointRoomTest, SnapshotsOfEarlierLaunchesCountAsFree) {
  const test::TemporaryFolder run;
  const auto free = [&] { return checkpoint::room_for_snapshots(run.path()); };
  const auto before = free();
  ASSERT_GT(before, 0);
  const std::filesystem::path prefix = checkpoint::memory_folder_prefix(run.path());
  const std::filesystem::path of_node = prefix.native() + "n1.0";
  const std::int64_t size = std::int64_t{1} << 40U;
  std::filesystem::create_directory(of_node);
  std::ofstream(of_node / "snapshot").close();
  std::filesystem::resize_file(of_node / "snapshot", size);  // takes no memory: counted free twice
  const auto with = free();
  std::filesystem::remove_all(of_node);
  // Other tests allocate and free some at the same time.
  EXPECT_GT(with, before + size / 2);
}

}  // namespace
}  // namespace llamesh::plan
