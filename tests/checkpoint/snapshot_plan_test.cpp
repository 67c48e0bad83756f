#include "checkpoint/memory/snapshot_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "fixture.hpp"

namespace llamesh::test {
namespace {

using checkpoint::FoundSnapshot;
using checkpoint::KeptSnapshot;
using checkpoint::RemoteReplicas;
using checkpoint::SnapshotKey;

/// Returns a topology with that many ranks on each node.
comm::Topology nodes_of_ranks(const std::vector<int>& ranks) {
  std::vector<int> machines;
  std::vector<std::string> hosts;
  for (std::size_t node = 0; node < ranks.size(); ++node)
    for (int r = 0; r < ranks[node]; ++r) {
      machines.push_back(static_cast<int>(node));
      hosts.push_back(fmt::format("node{}", node));
    }
  return comm::make_topology(machines, hosts, 0);
}

SnapshotKey key(std::uint64_t hash) {
  return {hash, 1000};
}

std::vector<SnapshotKey> keys(const std::vector<std::uint64_t>& hashes) {
  std::vector<SnapshotKey> all;
  for (const auto hash : hashes) all.push_back(key(hash));
  return all;
}

struct KeptCase {
  std::vector<std::uint64_t> keys;  ///< by rank
  std::vector<int> ranks_on;        ///< by node
  RemoteReplicas partner;
  std::vector<KeptSnapshot> expected;
};

TEST(SnapshotPlan, EachNodeKeepsItsShardsAndReplicasOfOthers) {
  const auto partner = RemoteReplicas::automatic;
  const std::vector<KeptCase> cases{
      // full_shard on one node, on two
      {{1, 2}, {2}, partner, {{key(1), 0, 0, 0}, {key(2), 0, 1, 1}}},
      {{1, 2},
       {1, 1},
       partner,
       {{key(1), 0, 0, 0}, {key(2), 0, 0, 1}, {key(2), 1, 1, 1}, {key(1), 1, 1, 0}}},
      {{1, 2}, {1, 1}, RemoteReplicas::off, {{key(1), 0, 0, 0}, {key(2), 1, 1, 1}}},
      // hybrid_shard: the replica is the second copy
      {{1, 2, 1, 2},
       {2, 2},
       partner,
       {{key(1), 0, 0, 0}, {key(2), 0, 1, 1}, {key(1), 1, 2, 2}, {key(2), 1, 3, 3}}},
      // no_shard: one snapshot per node
      {{1, 1, 1, 1}, {2, 2}, partner, {{key(1), 0, 0, 0}, {key(1), 1, 2, 2}}},
      // three nodes, one with a single rank, which keeps both of the others' snapshots
      {{1, 2, 3, 4, 5},
       {2, 2, 1},
       partner,
       {{key(1), 0, 0, 0},
        {key(2), 0, 1, 1},
        {key(5), 0, 0, 4},
        {key(3), 1, 2, 2},
        {key(4), 1, 3, 3},
        {key(1), 1, 2, 0},
        {key(2), 1, 3, 1},
        {key(5), 2, 4, 4},
        {key(3), 2, 4, 2},
        {key(4), 2, 4, 3}}},
      // only some shards have a replica on another node
      {{1, 2, 1},
       {2, 1},
       partner,
       {{key(1), 0, 0, 0}, {key(2), 0, 1, 1}, {key(1), 1, 2, 2}, {key(2), 1, 2, 1}}},
  };
  for (const auto& one : cases) {
    const auto topology = nodes_of_ranks(one.ranks_on);
    const auto kept = kept_snapshots(keys(one.keys), topology, one.partner);
    EXPECT_EQ(kept, one.expected);
    const auto bytes = bytes_per_node(kept, topology.nodes);
    for (int node = 0; node < topology.nodes; ++node)
      EXPECT_GT(bytes[static_cast<std::size_t>(node)],
                2000 * std::ranges::count(kept, node, &KeptSnapshot::node));
  }
}

FoundSnapshot snapshot(int node, std::uint64_t hash, std::int64_t step, std::uint64_t launch = 1) {
  return {.node = node, .slot = 0, .key = key(hash), .launch = launch, .step = step};
}

struct ChoiceCase {
  const char* name;
  std::vector<FoundSnapshot> found;
  std::int64_t step;       ///< -1: no set
  std::vector<int> nodes;  ///< of the snapshots, by rank
};

TEST(SnapshotPlan, ChoosesTheNewestStepThatIsCompleteOverNodesAndReplicas) {
  const auto topology = nodes_of_ranks({2, 2});
  const auto full = keys({1, 2, 3, 4});
  const auto hybrid = keys({1, 2, 1, 2});
  const std::vector<ChoiceCase> for_full{
      {"nothing", {}, -1, {}},
      {"each on its node",
       {snapshot(0, 1, 5), snapshot(0, 2, 5), snapshot(1, 3, 5), snapshot(1, 4, 5)},
       5,
       {0, 0, 1, 1}},
      {"a torn newer step",
       {snapshot(0, 1, 5), snapshot(0, 2, 5), snapshot(1, 3, 5), snapshot(1, 4, 5),
        snapshot(0, 1, 10), snapshot(0, 2, 10), snapshot(1, 3, 10)},
       5,
       {0, 0, 1, 1}},
      {"two complete steps",
       {snapshot(0, 1, 5), snapshot(0, 2, 5), snapshot(1, 3, 5), snapshot(1, 4, 5),
        snapshot(0, 1, 10), snapshot(0, 2, 10), snapshot(1, 3, 10), snapshot(1, 4, 10)},
       10,
       {0, 0, 1, 1}},
      {"a lost node, whose replicas on other nodes the other has",
       {snapshot(1, 3, 5), snapshot(1, 4, 5), snapshot(1, 1, 5), snapshot(1, 2, 5)},
       5,
       {1, 1, 1, 1}},
      {"a lost node without replicas on other nodes",
       {snapshot(1, 3, 5), snapshot(1, 4, 5)},
       -1,
       {}},
      {"no mix of two launches",
       {snapshot(0, 1, 5), snapshot(0, 2, 5), snapshot(1, 3, 5, 2), snapshot(1, 4, 5, 2)},
       -1,
       {}},
      {"an older launch that is complete",
       {snapshot(0, 1, 5), snapshot(0, 2, 5), snapshot(1, 3, 5), snapshot(1, 4, 5),
        snapshot(0, 1, 10, 2)},
       5,
       {0, 0, 1, 1}},
      {"moved to other nodes",
       {snapshot(1, 1, 5), snapshot(1, 2, 5), snapshot(0, 3, 5), snapshot(0, 4, 5)},
       5,
       {1, 1, 0, 0}},
  };
  for (const auto& one : for_full) {
    const auto set = newest_set(one.found, full, topology);
    ASSERT_EQ(set ? set->step : -1, one.step) << one.name;
    for (std::size_t r = 0; r < one.nodes.size(); ++r) {
      EXPECT_EQ(set->snapshots[r].node, one.nodes[r]) << one.name;
      EXPECT_EQ(set->snapshots[r].key, full[r]) << one.name;
    }
  }
  const std::vector<FoundSnapshot> mixed_ages{snapshot(0, 1, 10), snapshot(0, 2, 5),
                                              snapshot(1, 1, 5), snapshot(1, 2, 10)};
  const auto set = newest_set(mixed_ages, hybrid, topology);
  ASSERT_TRUE(set) << "each replica has half of step 10";
  EXPECT_EQ(set->step, 10);
  EXPECT_EQ(set->snapshots[1], snapshot(1, 2, 10));
  EXPECT_EQ(set->snapshots[2], snapshot(0, 1, 10));
  auto other_size = keys({1, 2, 1, 2});
  for (auto& one : other_size) one.bytes += 64;
  EXPECT_FALSE(newest_set(mixed_ages, other_size, topology));
}

TEST(SnapshotPlan, ANewNodeReceivesFromAllThatHaveItsSnapshots) {
  const auto topology = nodes_of_ranks({2, 2, 2});
  const auto wanted = keys({1, 2, 1, 2, 1, 2});
  const std::vector<FoundSnapshot> found{snapshot(1, 1, 5), snapshot(1, 2, 5), snapshot(2, 1, 5),
                                         snapshot(2, 2, 5)};
  const auto set = newest_set(found, wanted, topology);
  ASSERT_TRUE(set);
  const std::vector<checkpoint::SnapshotTransfer> expected{{snapshot(1, 1, 5), 2, 0},
                                                           {snapshot(2, 2, 5), 5, 1}};
  EXPECT_EQ(transfers_of(*set, topology), expected);
}

TEST(SnapshotPlan, RanksOfANodeShareWhatItReceives) {
  const auto topology = nodes_of_ranks({3, 1});
  const auto set = newest_set(std::vector{snapshot(1, 7, 5)}, keys({7, 7, 7, 7}), topology);
  ASSERT_TRUE(set);
  const std::vector<checkpoint::SnapshotTransfer> expected{{snapshot(1, 7, 5), 3, 0}};
  EXPECT_EQ(transfers_of(*set, topology), expected);
}

TEST(SnapshotPlan, AKeySaysWhichElementsARankHoldsAndWhere) {
  const Job one(1);
  const auto key = key_of(one.state());
  EXPECT_EQ(key, key_of(Job(1).state()));
  EXPECT_NE(key, key_of(Job(1, sharding::Wrap::none).state()));
  EXPECT_NE(key, key_of(Job(1, sharding::Wrap::layer, small_config(32)).state()));
  EXPECT_NE(key, key_of(one.state().only("/model")));
  auto bf16 = one.state();
  for (auto& shard : bf16.groups[1].shards)
    shard = Tensor(shard.data(), DType::bf16, {shard.numel()});
  EXPECT_NE(key, key_of(bf16));
  const auto all = world().all_gather(static_cast<std::int64_t>(key.hash));
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), all.size());
  // Replicas have the same key, which is also the key on a smaller mesh.
  const int size = world().size();
  if (size % 2 != 0) return;
  const auto replicas = world().all_gather(static_cast<std::int64_t>(key_of(Job(2).state()).hash));
  for (int r = 0; r < size / 2; ++r)
    EXPECT_EQ(replicas[static_cast<std::size_t>(r)],
              replicas[static_cast<std::size_t>(r + size / 2)]);
}

}  // namespace
}  // namespace llamesh::test
