#include <gtest/gtest.h>

#include <string_view>

#include "comm/mesh/topology.hpp"
#include "plan/step_plan.hpp"

// Plans on hardware with invented tables (device::MeasuredRates).

namespace llamesh::plan {
namespace {

train::Setup setup_on_two_ranks(int ranks_per_node) {
  train::Inputs in;
  in.data.format = data::Format::random;
  in.data.sequence_length = 64;
  in.precision.parameters = DType::bf16;
  in.train.threads = 1;
  in.sharding.strategy = sharding::Strategy::full_shard;
  return train::plan_setup(in, comm::planned_topology(2, 2, ranks_per_node));
}

/// Returns hardware on which only what the tables cover takes time.
device::Hardware with_tables_only() {
  constexpr double endless = 1e24;
  device::Hardware hardware;
  hardware.kind = device::Kind::cpu;
  for (double* rate : {&hardware.memory_bandwidth, &hardware.peak_bf16, &hardware.peak_fp32,
                       &hardware.host_bandwidth, &hardware.host_link,
                       &hardware.within_node.bandwidth, &hardware.between_nodes.bandwidth})
    *rate = endless;
  hardware.gemm_share = hardware.attention_forward_share = hardware.attention_backward_share = 1;
  hardware.measured.ranks = 2;
  return hardware;
}

TEST(MeasuredPlan, AStepTakesTheMeasuredTimeOfItsKernels) {
  const auto setup = setup_on_two_ranks(0);
  auto hardware = with_tables_only();
  EXPECT_LT(plan_step(setup, hardware).seconds, 1e-6);
  // A second per call, whatever its size.
  hardware.measured.kernels[DType::bf16]["rms_norm"].points = {{1e12, 1e12}};
  std::int64_t calls = 0;
  for (const auto& call : kernels_of_step(setup)) calls += call.name == "rms_norm";
  ASSERT_GT(calls, 0);
  EXPECT_NEAR(plan_step(setup, hardware).seconds, static_cast<double>(calls), 1e-6);
  // The other dtype's tables do not count.
  hardware.measured.kernels[DType::f32] = hardware.measured.kernels[DType::bf16];
  hardware.measured.kernels.erase(DType::bf16);
  EXPECT_LT(plan_step(setup, hardware).seconds, 1e-6);
}

TEST(MeasuredPlan, CollectivesTakeTheCoresOfTheComputation) {
  for (const int ranks_per_node : {2, 1}) {
    const auto setup = setup_on_two_ranks(ranks_per_node);
    auto hardware = with_tables_only();
    auto& tables =
        ranks_per_node == 2 ? hardware.measured.within_node : hardware.measured.between_nodes;
    for (const DType dtype : {DType::f32, DType::bf16})
      tables[dtype]["reduce-scatter"].points = {{1e12, 1e12}};
    comm::CollectiveLog log;
    const auto plan = plan_step(setup, hardware, 0, 4, &log);
    std::int64_t calls = 0;
    for (const auto& group : log.groups)
      for (const auto& call : group.calls)
        calls += group.name == "shard" && std::string_view(call.kind.data()) == "reduce-scatter";
    EXPECT_GT(calls, 0);
    EXPECT_NEAR(plan.seconds, static_cast<double>(calls) / 2, 1e-6);  // the log has two steps
    EXPECT_NEAR(plan.exposed_seconds, plan.seconds, 1e-6);
  }
}

TEST(MeasuredPlan, ThreadsDoNotScaleMeasuredRates) {
  auto hardware = with_tables_only();
  hardware.peak_bf16 = 1e9;
  hardware.threads = 4;
  const auto measured = plan_step(setup_on_two_ranks(0), hardware).seconds;
  hardware.measured.ranks = 0;
  EXPECT_NEAR(plan_step(setup_on_two_ranks(0), hardware).seconds, 4 * measured, 1e-6 * measured);
}

TEST(AsAttained, ScalesKernelsAndNotLinks) {
  device::Hardware hardware = with_tables_only();
  hardware.attained = 0.5;
  const auto attained = as_attained(hardware);
  EXPECT_EQ(attained.memory_bandwidth, hardware.memory_bandwidth / 2);
  EXPECT_EQ(attained.gemm_share, 0.5);
  EXPECT_EQ(attained.attention_forward_share, 0.5);
  EXPECT_EQ(attained.attention_backward_share, 0.5);
  EXPECT_EQ(attained.within_node.bandwidth, hardware.within_node.bandwidth);
  EXPECT_EQ(attained.peak_bf16, hardware.peak_bf16);
}

}  // namespace
}  // namespace llamesh::plan
