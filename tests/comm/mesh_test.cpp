#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "comm/mesh/device_mesh.hpp"
#include "comm/mpi/session.hpp"
#include "comm/transports/mpi_collectives.hpp"
#include "comm/transports/node_collectives.hpp"
#include "device/device.hpp"
#include "device/simulated/simulation.hpp"
#include "support.hpp"

namespace llamesh::comm {
namespace {

using test::world;

TEST(Topology, CutsMachinesIntoLogicalNodes) {
  const std::vector<std::string> hosts{"a", "b", "a", "b", "a", "a"};
  const std::vector<int> machines{0, 1, 0, 1, 0, 0};
  const auto whole = make_topology(machines, hosts, 0);
  EXPECT_EQ(whole.nodes, 2);
  EXPECT_EQ(whole.node_of, machines);
  EXPECT_EQ(whole.local_rank_of, (std::vector<int>{0, 0, 1, 1, 2, 3}));
  EXPECT_EQ(whole.ranks_on(0), 4);
  EXPECT_EQ(whole.uniform_ranks_per_node(), 0);
  const auto cut = make_topology(machines, hosts, 2);
  EXPECT_EQ(cut.nodes, 3);
  EXPECT_EQ(cut.node_of, (std::vector<int>{0, 1, 0, 1, 2, 2}));
  EXPECT_EQ(cut.local_rank_of, (std::vector<int>{0, 0, 1, 1, 0, 1}));
  EXPECT_EQ(cut.uniform_ranks_per_node(), 2);
  EXPECT_THROW(make_topology(machines, hosts, 3), Error);
  EXPECT_THROW(make_topology(machines, hosts, -1), Error);
}

TEST(Topology, OnPaperIsThatOfTheSameLaunch) {
  const auto paper = planned_topology(6, 4, 2);
  const auto launched = make_topology({0, 0, 0, 0, 4, 4}, std::vector<std::string>(6, "host"), 2);
  EXPECT_EQ(paper.node_of, launched.node_of);
  EXPECT_EQ(paper.local_rank_of, launched.local_rank_of);
  EXPECT_EQ(paper.nodes, 3);
  EXPECT_EQ(planned_topology(6, 4, 0).uniform_ranks_per_node(), 0);
  EXPECT_THROW(planned_topology(6, 4, 3), Error);
}

TEST(Mesh, AnAxisLiesWithinNodesOnlyWhenAllItsGroupsDo) {
  const std::vector<int> one_machine(4, 0);
  const std::vector<std::string> hosts(4, "a");
  const auto two = make_topology(one_machine, hosts, 2);
  const ParallelDims dims({{"replicate", 2}, {"shard", 2}});
  const auto replicate = dims.named({"replicate"});
  const auto shard = dims.named({"shard"});
  EXPECT_FALSE(within_node(dims, replicate, two));
  EXPECT_TRUE(within_node(dims, shard, two));
  EXPECT_FALSE(within_node(dims, dims.all(), two));
  EXPECT_TRUE(within_node(dims, AxisSet(), two));
  EXPECT_TRUE(within_node(dims, replicate, make_topology(one_machine, hosts, 0)));
  EXPECT_FALSE(within_node(dims, shard, make_topology({0, 0, 0, 1}, hosts, 0)));
  const auto text = describe(dims, two);
  EXPECT_NE(text.find("4 ranks on 2 nodes"), std::string::npos) << text;
  EXPECT_NE(text.find("replicate 1 shard 0"), std::string::npos) << text;
}

TEST(Mesh, TheShareBetweenNodesIsThatOfTheSendsThatCross) {
  const std::vector<std::string> hosts(8, "a");
  const auto nodes_of = [&](const std::vector<int>& machines) {
    return make_topology(machines, hosts, 0);
  };
  const auto share = [&](const ParallelDims& dims, std::size_t axis, const Topology& topology) {
    const auto along = dims.named({dims.axes()[axis].name});
    return std::pair(share_between_nodes(dims, along, topology, Route::pairs),
                     share_between_nodes(dims, along, topology, Route::ring));
  };
  using Shares = std::pair<double, double>;
  const auto two_of_four = nodes_of({0, 0, 0, 0, 1, 1, 1, 1});
  const ParallelDims hybrid({{"replicate", 2}, {"shard", 4}});
  EXPECT_EQ(share(hybrid, 0, two_of_four), Shares(1, 1));
  EXPECT_EQ(share(hybrid, 1, two_of_four), Shares(0, 0));
  // One group over both nodes: 4 of a rank's 7 peers are on the other node; a ring crosses twice.
  const ParallelDims full({{"replicate", 1}, {"shard", 8}});
  EXPECT_EQ(share(full, 0, two_of_four), Shares(0, 0));
  EXPECT_EQ(share(full, 1, two_of_four), Shares(4.0 / 7, 2.0 / 8));
  // With unequal nodes, the mean over the ranks: 6 x 2 and 2 x 6 out of 8 x 7 sends.
  EXPECT_EQ(share(full, 1, nodes_of({0, 0, 0, 0, 0, 0, 1, 1})), Shares(24.0 / 56, 2.0 / 8));
  // Half of the groups cross.
  EXPECT_EQ(share(hybrid, 1, nodes_of({0, 0, 0, 0, 1, 1, 2, 2})), Shares(8.0 / 24, 2.0 / 8));
}

// 7 parts go to partners: 4 and 2 within a node, 1 to the other node.
TEST(Mesh, ATreeSendsLeastToTheFarthestRanks) {
  const auto topology =
      make_topology({0, 0, 0, 0, 1, 1, 1, 1}, std::vector<std::string>(8, "a"), 0);
  const ParallelDims full({{"shard", 8}});
  EXPECT_EQ(share_between_nodes(full, full.all(), topology, Route::tree), 1.0 / 7);
  const ParallelDims hybrid({{"replicate", 2}, {"shard", 4}});
  EXPECT_EQ(share_between_nodes(hybrid, hybrid.named({"shard"}), topology, Route::tree), 0);
  EXPECT_EQ(share_between_nodes(hybrid, hybrid.named({"replicate"}), topology, Route::tree), 1);
}

TEST(Mesh, ReducesAlongEachAxisAlone) {
  const int size = world().size();
  const int inner = size % 2 == 0 ? 2 : 1;
  const auto topology = discover_topology(world(), inner);
  EXPECT_EQ(topology.nodes, size / inner);
  DeviceMesh mesh(world(), topology, ParallelDims({{"replicate", size / inner}, {"shard", inner}}));
  auto& replicate = mesh.axis("replicate");
  auto& shard = mesh.axis("shard");
  EXPECT_NE(dynamic_cast<NodeCollectives*>(shard.collectives.get()), nullptr);
  EXPECT_EQ(dynamic_cast<MpiCollectives*>(replicate.collectives.get()) != nullptr, size > inner);
  EXPECT_EQ(shard.rank, world().rank() % inner);
  EXPECT_EQ(replicate.rank, world().rank() / inner);

  device::Buffer buffer(8);
  const auto a = buffer.tensor(DType::f32, {1});
  const auto b = buffer.tensor(DType::f32, {1}, 4);
  *a.as<float>() = *b.as<float>() = static_cast<float>(1 << world().rank());
  shard.collectives->all_reduce(a, {}).wait();
  replicate.collectives->all_reduce(b, {}).wait();
  int along_shard = 0;
  int along_replicate = 0;
  for (int r = 0; r < size; ++r) {
    if (r / inner == replicate.rank) along_shard += 1 << r;
    if (r % inner == shard.rank) along_replicate += 1 << r;
  }
  EXPECT_EQ(*a.as<float>(), static_cast<float>(along_shard));
  EXPECT_EQ(*b.as<float>(), static_cast<float>(along_replicate));
}

TEST(Mesh, OnGpusReductionsDoNotWaitForGathersButShareTheirLinks) {
  for (const auto kind : {device::Kind::cpu, device::Kind::cuda}) {
    device::Hardware hardware;
    hardware.kind = kind;
    hardware.memory_bandwidth = 1e15;
    hardware.within_node = hardware.between_nodes = {.bandwidth = 1e6, .latency = 0.5};
    device::Simulation simulation(hardware);
    const ParallelDims dims({{"replicate", 1}, {"shard", 2}});
    DeviceMesh mesh(make_topology({0, 1}, {"a", "b"}, 0), dims, /*rank=*/0);
    const auto along = dims.named({"shard"});
    auto& gathers = mesh.along(along);
    auto& reductions = mesh.reductions_along(along);
    const bool apart = kind == device::Kind::cuda;
    EXPECT_EQ(&reductions != &gathers, apart);
    EXPECT_EQ(&mesh.reductions_along(along), &reductions) << "made twice";
    EXPECT_EQ(&mesh.reductions_along({}), &mesh.along({})) << "a rank by itself";
    EXPECT_EQ(reductions.name, "shard");
    EXPECT_EQ(reductions.rank, gathers.rank);
    EXPECT_EQ(mesh.all().size(), apart ? 3U : 2U);

    constexpr std::int64_t n = 500'000;  // 1 s of traffic in each
    const device::Buffer buffer(8 * n);
    const auto whole = buffer.tensor(DType::f32, {n});
    const auto mine = buffer.tensor(DType::f32, {n / 2}, 4 * n);
    const auto reduced = reductions.collectives->reduce_scatter(mine, whole, Accumulate::no, {});
    const auto gathered = gathers.collectives->all_gather(whole, mine, {});
    device::compute_stream().wait(reduced);
    EXPECT_NEAR(simulation.now(), 1.5, 1e-3);
    device::compute_stream().wait(gathered);
    EXPECT_NEAR(simulation.now(), apart ? 2.5 : 3, 1e-3);
  }
}

/// Two nodes with two ranks each; seen from rank 1, rank 0 is near, ranks 2 and 3 are far.
TEST(SimulatedCollectives, TakeTheTimeOfTheBytesForEachPeer) {
  device::Hardware hardware;
  hardware.memory_bandwidth = 1e15;
  hardware.within_node = {.bandwidth = 2e6, .latency = 0.25};
  hardware.between_nodes = {.bandwidth = 1e6, .latency = 0.5};
  hardware.collective_seconds = 0.125;
  device::Simulation simulation(hardware);
  CollectiveLog log;
  DeviceMesh mesh(make_topology({0, 0, 1, 1}, {"a", "a", "b", "b"}, 0),
                  ParallelDims({{"shard", 4}}), /*rank=*/1, &log);
  auto& axis = *mesh.axis("shard").collectives;
  constexpr std::int64_t n = 250'000;  // 1 MB
  const device::Buffer buffer(32 * n);
  const auto sent = buffer.tensor(DType::f32, {4 * n});
  const auto received = buffer.tensor(DType::f32, {4 * n}, 16 * n);
  const auto seconds = [&](const device::Event& event) {
    const double start = simulation.now();
    device::compute_stream().wait(event);
    return simulation.now() - start;
  };
  EXPECT_NEAR(seconds(axis.all_to_all(received, sent, {})), 0.125 + 1.25 + 0.5 + 2, 1e-3);
  EXPECT_EQ(axis.bytes_sent(), 12 * n);
  // 2 MB from rank 0 take longer than 0.5 MB for rank 2.
  const std::vector<std::int64_t> from{2 * n, 0, 0, 0};
  const std::vector<std::int64_t> to{0, 0, n / 2, 0};
  EXPECT_NEAR(
      seconds(axis.all_to_all(received.slice(0, 2 * n), from, sent.slice(0, n / 2), to, {})),
      0.125 + 0.5 + 1, 1e-3);
  EXPECT_EQ(axis.bytes_sent(), 14 * n);
  EXPECT_NEAR(seconds(axis.send_recv({}, CollectiveCall::none, sent.slice(0, n), 3, {})),
              0.125 + 0.5 + 1, 1e-3);
  EXPECT_EQ(axis.bytes_sent(), 18 * n);
  std::vector<std::string> calls;
  for (const auto& call : log.groups.front().calls) calls.push_back(describe(call));
  EXPECT_EQ(calls, (std::vector<std::string>{"all-to-all (4000000 bytes of fp32)",
                                             "all-to-all (fp32 by counts)",
                                             "send-recv (fp32 by counts)"}));
}

TEST(Mesh, GroupsAlongSeveralAxes) {
  const int size = world().size();
  const int inner = size % 2 == 0 ? 2 : 1;
  const auto topology = discover_topology(world(), 0);
  const ParallelDims dims({{"a", inner}, {"b", size / inner}, {"c", 1}});
  DeviceMesh mesh(world(), topology, dims);
  EXPECT_EQ(&mesh.group(dims.all()), &world());
  if (size > 1) {
    EXPECT_EQ(&mesh.group(dims.named({"c"})), &*mesh.axis("c").group);
  }
  for (const auto& along : {dims.named({"b", "c"}), dims.named({"c", "a"}), AxisSet()}) {
    const auto& group = mesh.group(along);
    EXPECT_EQ(&mesh.group(along), &group) << "made twice";
    EXPECT_EQ(group.rank(), dims.rank_in_group(along, world().rank()));
    const auto ranks = group.all_gather(world().rank());
    EXPECT_TRUE(std::ranges::equal(ranks, dims.group(along, world().rank())));
  }
}

// Each rank sends to the next one along the axis, the last one to the first, in two channels.
TEST(Mesh, PairsSendInChannelsOfTheirOwn) {
  if (world().size() < 2) return;
  DeviceMesh mesh(world(), discover_topology(world(), 0),
                  ParallelDims({{"pipeline", world().size()}}));
  const int size = world().size(), rank = world().rank();
  device::Buffer buffer(std::int64_t{3} * 64);
  for (const int first : {0, 1, size - 1})
    for (const int channel : {1, 2}) {
      auto& pair = mesh.pairs_along(mesh.dims().pipeline(), first, channel);
      EXPECT_EQ(&mesh.pairs_along(mesh.dims().pipeline(), first, channel), &pair);
      if (pair.size == 1) continue;
      const Tensor sent = buffer.tensor(DType::f32, {4}),
                   received = buffer.tensor(DType::f32, {4}, 64);
      const bool sends = (pair.rank == 0) == (channel == 1);
      const Tensor nothing = sent.slice(0, 0);
      std::ranges::fill(sent.span<float>(), static_cast<float>(rank));
      constexpr auto none = CollectiveCall::none;
      auto done = sends ? pair.collectives->send_recv(nothing, none, sent, 1 - pair.rank, {})
                        : pair.collectives->send_recv(received, 1 - pair.rank, nothing, none, {});
      done.wait();
      const int from = channel == 1 ? (rank + size - 1) % size : (rank + 1) % size;
      if (!sends) {
        for (const float value : received.span<float>()) EXPECT_EQ(value, static_cast<float>(from));
      }
      world().barrier();
    }
}

// A rank that is simulated beside another one gets its data when that one has sent them.
TEST(SimulatedCollectives, WaitForARankThatIsSimulatedSideBySide) {
  device::Hardware hardware;
  hardware.memory_bandwidth = 1e9;
  hardware.within_node = {.bandwidth = 1e3, .latency = 0};
  SharedTime time(2);
  const ParallelDims dims({{"pipeline", 2}});
  double arrived = 0, met[2] = {0, 0};
  const auto simulate = [&](int rank) {
    device::Simulation simulation(hardware);
    DeviceMesh mesh(planned_topology(2, 2, 0), dims, rank, nullptr, &time);
    auto& pair = mesh.pairs_along(dims.pipeline(), 0, 1);
    const device::Buffer buffer(4000);
    const Tensor all = buffer.tensor(DType::f32, {1000}), nothing = all.slice(0, 0);
    constexpr auto none = CollectiveCall::none;
    if (rank == 0) {
      simulation.run(device::compute_stream(), 5);
      pair.collectives->send_recv(nothing, none, all, 1, device::compute_stream().record());
    } else {
      const auto here = pair.collectives->send_recv(all, 0, nothing, none, {});
      simulation.run(device::compute_stream(), 1);
      device::compute_stream().wait(here);
      arrived = simulation.now();
    }
    met[rank] = time.meet(simulation.now());
  };
  std::jthread other(simulate, 0);
  simulate(1);
  other.join();
  EXPECT_DOUBLE_EQ(arrived, 9);  // 5 s, and 4000 bytes at 1 kB/s
  EXPECT_DOUBLE_EQ(met[0], 9);
  EXPECT_DOUBLE_EQ(met[1], 9);
  time.fail();
  EXPECT_THROW(time.meet(0), PeerFailure);
}

TEST(Mesh, RefusesSizesThatDoNotFit) {
  const auto topology = discover_topology(world(), 0);
  EXPECT_THROW(DeviceMesh(world(), topology, ParallelDims({{"shard", world().size() + 1}})), Error);
}

}  // namespace
}  // namespace llamesh::comm
