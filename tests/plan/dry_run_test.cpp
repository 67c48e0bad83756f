#include "plan/dry_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/format/state.hpp"
#include "comm/mesh/topology.hpp"
#include "core/error.hpp"
#include "core/trace.hpp"
#include "optim/optimizer.hpp"
#include "optim/outer_optimizer.hpp"
#include "plan/step_plan.hpp"

namespace llamesh::plan {
namespace {

using train::Inputs;
using train::Setup;

/// The one line that a violation is.
template <class Check>
std::string violation(Check check) {
  try {
    check();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::internal_error);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "none";
}

// --- the checks, on what is wrong

std::string tiling(const std::vector<RankRange>& ranges, const std::vector<Box>& parts) {
  return violation([&] { check_each_once("w", "owned", {4, 6}, parts, ranges); });
}

TEST(EachOnce, HolesOverlapsAndExcessAreNamed) {
  const std::vector<Box> halves{{{0, 0}, {4, 3}}, {{0, 3}, {4, 3}}};  // by columns
  const std::vector<RankRange> good{{0, 0, 0, 5}, {1, 1, 0, 12}, {2, 0, 5, 7}};
  EXPECT_EQ(tiling(good, halves), "none");
  auto ranges = good;
  ranges[2].begin = 6;
  ranges[2].count = 6;
  EXPECT_EQ(tiling(ranges, halves), "element 5 of part 0 of w is owned by no rank");
  ranges[2] = {2, 0, 4, 8};
  EXPECT_EQ(tiling(ranges, halves), "element 4 of part 0 of w is owned by rank 0 and by rank 2");
  ranges[2] = {2, 0, 5, 6};
  EXPECT_EQ(tiling(ranges, halves), "element 11 of part 0 of w is owned by no rank");
  ranges[2] = {2, 0, 5, 8};
  EXPECT_EQ(tiling(ranges, halves), "rank 2 has 13 elements of part 0 of w owned, which has 12");
  ranges = good;
  ranges[1].part = 2;
  EXPECT_EQ(tiling(ranges, halves), "element 0 of part 1 of w is owned by no rank");
  ranges = good;
  ranges.push_back({3, 2, 0, 1});
  EXPECT_EQ(tiling(ranges, halves), "rank 3 has a part 2 of w owned, which has 2 parts");
  ranges = good;
  ranges.push_back(good[1]);
  EXPECT_NE(tiling(ranges, halves), "none");
}

TEST(EachOnce, PartsHaveToBeTheArray) {
  const std::vector<RankRange> ranges{{0, 0, 0, 12}, {1, 1, 0, 12}};
  EXPECT_EQ(tiling(ranges, {{{0, 0}, {4, 3}}, {{0, 2}, {4, 3}}}), "parts 0 and 1 of w overlap");
  EXPECT_EQ(tiling(ranges, {{{0, 0}, {4, 3}}}), "the 1 parts of w have 12 elements, of 24");
  EXPECT_EQ(tiling(ranges, {{{0, 0}, {4, 3}}, {{0, 4}, {4, 3}}}), "part 1 of w is not within it");
}

comm::CollectiveCall call(std::string_view kind, std::int64_t numel, DType dtype = DType::bf16) {
  return comm::CollectiveCall::of(kind, "layers.0", name_of(dtype), numel * size_of(dtype));
}

/// Calls by each of two by two ranks along both axes, all alike.
std::vector<comm::CollectiveLog> alike(const comm::ParallelDims& dims) {
  const std::vector<comm::CollectiveCall> calls{call("all-gather", 64), call("reduce-scatter", 64),
                                                call("all-reduce", 8, DType::f32)};
  const comm::CollectiveLog log{
      {{"shard", dims.named({"shard"}), calls}, {"tensor", dims.named({"tensor"}), calls}},
      {0, 1, 1, 0, 0, 1}};
  return {log, log, log, log};
}

std::string agreement(const comm::ParallelDims& dims, const std::vector<comm::CollectiveLog>& log) {
  const RankClasses classes{{0, 1, 2, 3}, {0, 1, 2, 3}};
  return violation([&] { check_groups_agree(dims, classes, log); });
}

TEST(Agreement, WhatMembersOfAGroupCallOtherwiseIsShownFromBothSides) {
  const comm::ParallelDims dims({{"shard", 2}, {"tensor", 2}});
  EXPECT_EQ(agreement(dims, alike(dims)), "none");

  auto swapped = alike(dims);
  std::swap(swapped[3].groups[0].calls[0], swapped[3].groups[0].calls[1]);
  EXPECT_EQ(agreement(dims, swapped),
            "ranks 1 and 3 of a group along shard differ: number 1 is all-gather of layers.0 (128 "
            "bytes of bf16) on rank 1, reduce-scatter of layers.0 (128 bytes of bf16) on rank 3");

  auto shorter = alike(dims);
  shorter[1].groups[1].calls.pop_back();
  EXPECT_EQ(agreement(dims, shorter),
            "ranks 0 and 1 of a group along tensor differ: number 3 is all-reduce of "
            "layers.0 (32 bytes of fp32) on rank 0, none on rank 1");

  for (const auto& other :
       {call("all-gather", 64, DType::f32), call("all-gather", 96), call("broadcast", 64)}) {
    auto changed = alike(dims);
    changed[2].groups[1].calls[0] = other;
    EXPECT_NE(agreement(dims, changed).find("ranks 2 and 3 of a group along tensor differ"),
              std::string::npos)
        << describe(other);
  }
  auto of_another_unit = alike(dims);
  set_text(of_another_unit[2].groups[0].calls[0].subject, "layers.1");
  EXPECT_NE(agreement(dims, of_another_unit), "none");
}

TEST(Agreement, GroupsHaveToBeMadeInOneOrder) {
  const comm::ParallelDims dims({{"shard", 2}, {"tensor", 2}});
  auto log = alike(dims);
  std::swap(log[2].groups[0], log[2].groups[1]);
  EXPECT_EQ(agreement(dims, log),
            "ranks 0 and 2 of the world differ: number 1 is a group of 2 along shard on rank 0, a "
            "group of 2 along tensor on rank 2");
  log = alike(dims);
  log[3].groups.pop_back();
  EXPECT_NE(agreement(dims, log), "none");
}

TEST(Agreement, ClassesThatShareNoGroupMayDiffer) {
  const comm::ParallelDims dims({{"shard", 2}, {"tensor", 2}});
  auto log = alike(dims);
  for (const int rank : {2, 3}) {  // the group of these along tensor
    log[rank].groups[1].calls.pop_back();
    log[rank].order.pop_back();
  }
  EXPECT_EQ(agreement(dims, log), "none");
}

TEST(Agreement, GroupsThatWaitForEachOtherInACircleAreFound) {
  const comm::ParallelDims dims({{"shard", 2}, {"tensor", 2}});
  auto log = alike(dims);
  log[3].order = {1, 0, 0, 1, 1, 0};
  EXPECT_EQ(agreement(dims, log), "none");  // rank 2 comes along tensor, then rank 1 along shard
  log = alike(dims);
  log[1].order = log[2].order = {1, 0, 0, 1, 1, 0};
  EXPECT_EQ(agreement(dims, log),
            "groups wait for each other: rank 0 in its call 1 along shard for rank 2, which is in "
            "its call 1 along tensor");
}

// --- classes of ranks against all ranks

device::Hardware hardware(device::Kind kind) {
  device::Hardware hardware;
  hardware.kind = kind;
  hardware.memory_bandwidth = hardware.peak_bf16 = hardware.peak_fp32 = 1e12;
  hardware.host_bandwidth = hardware.host_link = 1e11;
  hardware.gemm_share = hardware.attention_forward_share = hardware.attention_backward_share = 1;
  hardware.within_node = {.bandwidth = 1e11, .latency = 1e-6};
  hardware.between_nodes = {.bandwidth = 1e10, .latency = 1e-5};
  return hardware;
}

struct Launch {
  const char* name;
  int ranks;
  int per_machine;
  void (*change)(Inputs& in);
};

Setup setup_of(const Launch& launch) {
  Inputs in;
  in.model.hidden_size = 48;
  in.model.intermediate_size = 96;
  in.model.num_hidden_layers = 3;
  in.model.num_attention_heads = 8;
  in.model.num_key_value_heads = 2;
  in.model.head_dim = 8;
  in.model.vocab_size = 261;
  in.data.sequence_length = 24;
  in.sharding.strategy = sharding::Strategy::full_shard;
  in.train.global_batch = 24;
  in.train.micro_batch = 1;
  launch.change(in);
  return train::plan_setup(in, comm::planned_topology(launch.ranks, launch.per_machine, 0));
}

using sharding::ResidualLayout;
using sharding::Strategy;

void with_experts(Inputs& in) {
  in.model.family = "mixtral";
  in.model.num_experts = 4;
  in.model.num_experts_per_tok = 2;
}

const Launch launches[] = {
    {"experts", 8, 4,
     [](Inputs& in) {
       with_experts(in);
       in.mesh.expert = 4;
     }},
    {"experts_in_replicas", 8, 4,
     [](Inputs& in) {
       with_experts(in);
       in.sharding.strategy = Strategy::hybrid_shard;
       in.mesh.expert = 2;
       in.precision.parameters = DType::bf16;
     }},
    {"experts_of_tensor_ranks", 8, 4,
     [](Inputs& in) {
       with_experts(in);
       in.mesh.expert = in.mesh.tensor = 2;
     }},
    {"context", 8, 4, [](Inputs& in) { in.mesh.context = 4; }},
    {"context_of_experts_and_tensor_ranks", 8, 8,
     [](Inputs& in) {
       with_experts(in);
       in.mesh.expert = in.mesh.context = in.mesh.tensor = 2;
       in.memory.activation_checkpointing = model::ActivationCheckpointing::full;
     }},
    {"context_across_nodes", 8, 2,
     [](Inputs& in) {
       in.mesh.context = 4;
       in.precision.parameters = DType::bf16;
     }},
    {"full_shard", 4, 4, [](Inputs&) {}},
    {"no_shard", 3, 2, [](Inputs& in) { in.sharding.strategy = Strategy::no_shard; }},
    {"machines_of_3_and_1", 4, 3, [](Inputs& in) { in.precision.parameters = DType::bf16; }},
    {"groups_on_one_node_and_on_two", 4, 3,
     [](Inputs& in) {
       in.mesh.tensor = 2;
       in.mesh.allow_tensor_across_nodes = true;
     }},
    {"two_by_two_by_two", 8, 4,
     [](Inputs& in) {
       in.sharding.strategy = Strategy::hybrid_shard;
       in.mesh = {.replicate = 2, .shard = 2, .tensor = 2};
     }},
    {"whole_residual", 8, 4,
     [](Inputs& in) {
       in.mesh.tensor = 2;
       in.tensor.residual = ResidualLayout::whole;
       in.sharding.wrap = {.wrap = sharding::Wrap::none};
     }},
    {"hidden_residual", 6, 2,
     [](Inputs& in) {
       in.mesh.tensor = 2;
       in.tensor.residual = ResidualLayout::hidden;
       in.optimizer.name = optim::OptimizerName::sgd;
     }},
    {"shared_kv_heads", 8, 4,
     [](Inputs& in) {
       in.mesh.tensor = 4;
       in.sharding.wrap = {.wrap = sharding::Wrap::size, .min_numel = 5000};
     }},
    {"shared_kv_heads_of_12_ranks", 12, 4,
     [](Inputs& in) {
       in.mesh.tensor = 4;
       in.precision.parameters = in.precision.reduce = DType::bf16;
     }},
    {"secondary_shards", 4, 2,
     [](Inputs& in) { in.sharding.reshard_after_forward = sharding::ReshardAfterForward{2}; }},
    {"reduced_on_the_last_micro_batch", 4, 2,
     [](Inputs& in) {
       in.sharding.strategy = Strategy::shard_grad_op;
       in.sharding.reduce = sharding::Reduce::last;
     }},
    {"kept_bf16_weights", 4, 2,
     [](Inputs& in) {
       in.precision.parameters = DType::bf16;
       in.sharding.keep_bf16_weights = sharding::KeepBf16Weights::yes;
       in.sharding.reshard_after_forward = sharding::ReshardAfterForward{2};
     }},
    {"stages", 8, 2,
     [](Inputs& in) {
       in.mesh = {.pipeline = 2, .tensor = 2};
       in.train.global_batch = 16;
     }},
    {"stages_of_a_tied_model", 6, 2,
     [](Inputs& in) {
       in.mesh.pipeline = 3;
       in.model.num_hidden_layers = 6;
       in.model.tie_word_embeddings = true;
       in.pipeline.chunks = 2;
       in.train.global_batch = 12;
     }},
    {"stages_with_chunks", 8, 4,
     [](Inputs& in) {
       in.sharding.strategy = Strategy::hybrid_shard;
       in.mesh = {.replicate = 2, .pipeline = 2};
       in.model.num_hidden_layers = 5;
       in.pipeline = {.chunks = 2, .layers = {1, 2, 1, 1}};
       in.sharding.offload = sharding::Offload::all;
       in.train.global_batch = 32;
     }},
    {"muon", 8, 4,
     [](Inputs& in) {
       in.sharding.strategy = Strategy::hybrid_shard;
       in.optimizer.name = optim::OptimizerName::muon;
     }},
    {"muon_of_experts", 8, 4,
     [](Inputs& in) {
       with_experts(in);
       in.mesh.expert = 4;
       in.optimizer.name = optim::OptimizerName::muon;
       in.optimizer.moments = DType::bf16;
     }},
    {"replicas_that_feed_errors_back", 8, 4,
     [](Inputs& in) {
       in.sharding.strategy = Strategy::hybrid_shard;
       in.mesh = {.replicate = 2, .tensor = 2};
       in.sharding.reduce_dtype = sharding::ReduceDType::int8;
       in.sharding.error_feedback = true;
     }},
    {"replicas_apart", 8, 2,
     [](Inputs& in) {
       in.sharding.strategy = Strategy::hybrid_shard;
       in.mesh = {.replicate = 4, .tensor = 2};
       in.optimizer.outer = {.every_steps = 8, .fragments = 2, .delay_steps = 1};
     }},
    {"offloaded_replicas_apart", 8, 4,
     [](Inputs& in) {
       in.sharding.strategy = Strategy::hybrid_shard;
       in.mesh = {.replicate = 2, .pipeline = 2};
       in.sharding.offload = sharding::Offload::all;
       in.optimizer.outer = {.every_steps = 8, .reduce_dtype = sharding::ReduceDType::int4};
       in.train.global_batch = 16;
     }},
    {"offloaded_optimizer", 8, 4,
     [](Inputs& in) {
       in.mesh.tensor = 2;
       in.sharding.offload = sharding::Offload::optimizer;
     }},
    {"all_offloaded", 8, 4,
     [](Inputs& in) {
       in.sharding.strategy = Strategy::hybrid_shard;
       in.mesh = {.replicate = 2, .shard = 2, .tensor = 2};
       in.sharding.offload = sharding::Offload::all;
       in.precision.parameters = in.precision.reduce = DType::bf16;
     }},
    {"a_spec", 8, 4,
     [](Inputs& in) {
       in.sharding.strategy = Strategy::hybrid_shard;
       in.sharding.spec.emplace();
       for (const char* name : {"model.embed_tokens", "model.layers.*.mlp.gate_proj"})
         in.sharding.spec->entries.push_back(
             {name + std::string(".weight"), {{"shard"}, {}}, "test"});
     }},
};

class EveryLaunch : public testing::TestWithParam<std::tuple<Launch, device::Kind>> {};

/// On a CPU sums of squares keep 8 bytes for each block of what is summed: not the same on a rank
/// whose replicas count the elements.
constexpr double sums_on_cpu = 64;

void expect_same_memory(const StepPlan& a, const StepPlan& b) {
  for (std::size_t use = 0; use < a.at_peak.size(); ++use) {
    const auto name = static_cast<device::MemoryUse>(use);
    const double slack = name == device::MemoryUse::scratch ? sums_on_cpu : 0;
    EXPECT_NEAR(static_cast<double>(a.at_peak[use]), static_cast<double>(b.at_peak[use]), slack)
        << "rank " << a.rank << ", " << name_of(name);
  }
  EXPECT_NEAR(static_cast<double>(a.allocated_after_step),
              static_cast<double>(b.allocated_after_step), sums_on_cpu);
  EXPECT_EQ(a.on_host, b.on_host);
}

TEST_P(EveryLaunch, ARankDoesAsTheFirstOfItsClass) {
  const auto& [launch, kind] = GetParam();
  const auto setup = setup_of(launch);
  const auto classes = rank_classes(setup);
  ASSERT_EQ(std::ssize(classes.of_rank), launch.ranks);
  std::vector<comm::CollectiveLog> logs(static_cast<std::size_t>(launch.ranks));
  std::vector<StepPlan> plans;
  for (int rank = 0; rank < launch.ranks; ++rank)
    plans.push_back(
        plan_step(setup, hardware(kind), rank, 4, &logs[static_cast<std::size_t>(rank)]));
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const auto first =
        static_cast<std::size_t>(classes.first[static_cast<std::size_t>(classes.of_rank[rank])]);
    expect_same_memory(plans[rank], plans[first]);
    // Muon takes whole matrices to ranks, so bytes differ a little.
    if (setup.inputs.optimizer.name != optim::OptimizerName::muon) {
      EXPECT_EQ(plans[rank].traffic, plans[first].traffic) << rank;
    }
    ASSERT_EQ(logs[rank].groups.size(), logs[first].groups.size());
    for (std::size_t g = 0; g < logs[rank].groups.size(); ++g) {
      const auto& [name, along, calls] = logs[rank].groups[g];
      EXPECT_EQ(name, logs[first].groups[g].name);
      EXPECT_EQ(along, logs[first].groups[g].along);
      EXPECT_EQ(calls, logs[first].groups[g].calls) << rank << ' ' << name;
    }
    EXPECT_EQ(logs[rank].order, logs[first].order) << rank;
    most = std::max(most, plans[rank].peak);
  }
  const auto fullest = plan_fullest_rank(setup, hardware(kind));
  EXPECT_NEAR(static_cast<double>(fullest.peak), static_cast<double>(most),
              kind == device::Kind::cpu ? sums_on_cpu : 0);
  EXPECT_EQ(plans[static_cast<std::size_t>(fullest.rank)].peak, fullest.peak);
}

/// NCCL starts kernels in the order of their launches. If replicas were reduced right behind the
/// reduction over the shard axis, which they wait for, later gathers would wait for it as well.
TEST(LaunchOrder, ReplicasFollowOneUnitLaterOnGpus) {
  const auto setup =
      setup_of({"hybrid", 4, 2, [](Inputs& in) { in.sharding.strategy = Strategy::hybrid_shard; }});
  for (const auto kind : {device::Kind::cuda, device::Kind::cpu}) {
    comm::CollectiveLog log;
    plan_step(setup, hardware(kind), 0, 4, &log);
    std::vector<std::size_t> next(log.groups.size());
    std::string before;
    int right_behind = 0, others = 0;
    for (const auto g : log.order) {
      const auto& call = log.groups[g].calls[next[g]++];
      const std::string unit = call.subject.data();
      if (std::string_view(call.kind.data()) == "all-reduce" && unit.starts_with("model"))
        (before == "reduce-scatter " + unit ? right_behind : others) += 1;
      before = fmt::format("{} {}", call.kind.data(), unit);
    }
    constexpr int steps = 2, units = 5;
    EXPECT_EQ(right_behind + others, steps * units);
    EXPECT_EQ(right_behind, kind == device::Kind::cuda ? 0 : steps * units);
  }
}

/// Rank by rank, where the dry run takes replicas together.
std::int64_t hyperslabs_of(const Setup& setup,
                           const std::vector<checkpoint::GroupContents>& groups) {
  std::int64_t hyperslabs = 0;
  for (int rank = 0; rank < setup.mesh.ranks(); ++rank)
    for (const auto& h : checkpoint::written_by(*setup.layout, groups, rank)) {
      const auto parts = setup.layout->parts(h.parameter);
      const auto& box = parts[static_cast<std::size_t>(h.part)];
      checkpoint::for_each_segment(h.count, [&](std::int64_t at, std::int64_t count) {
        for_each_box({box, h.begin + at, count}, [&](const Box&, std::int64_t) { ++hyperslabs; });
      });
    }
  return hyperslabs;
}

TEST_P(EveryLaunch, ClassesOfRanksShowWhatAllRanksDo) {
  const auto& [launch, kind] = GetParam();
  const auto setup = setup_of(launch);
  const auto of_classes = dry_run(setup, hardware(kind), rank_classes(setup));
  const auto of_all = dry_run(setup, hardware(kind), every_rank(setup));
  EXPECT_EQ(of_all.simulated, launch.ranks);
  EXPECT_LE(of_classes.simulated, launch.ranks);
  ASSERT_EQ(of_classes.groups.size(), of_all.groups.size());
  for (std::size_t g = 0; g < of_all.groups.size(); ++g) {
    EXPECT_EQ(of_classes.groups[g].axis, of_all.groups[g].axis);
    EXPECT_EQ(of_classes.groups[g].count, of_all.groups[g].count);
    EXPECT_EQ(of_classes.groups[g].collectives, of_all.groups[g].collectives);
  }
  EXPECT_EQ(of_classes.checkpoint.elements, of_all.checkpoint.elements);
  EXPECT_EQ(of_classes.checkpoint.hyperslabs, of_all.checkpoint.hyperslabs);
  const auto groups =
      checkpoint::groups_of({.moments = optim::moments_of(setup.inputs.optimizer),
                             .outer = optim::outer_tensors_of(setup.inputs.optimizer.outer),
                             .gradient_errors = setup.inputs.sharding.error_feedback,
                             .frozen = true},
                            *setup.layout);
  std::int64_t elements = 0;
  for (const auto& group : groups)
    for (const auto& parameter : setup.table->parameters)
      elements += group.contain(parameter) ? parameter.numel() : 0;
  EXPECT_EQ(of_all.checkpoint.elements, elements);
  EXPECT_EQ(of_all.checkpoint.hyperslabs, hyperslabs_of(setup, groups));
}

INSTANTIATE_TEST_SUITE_P(DryRun, EveryLaunch,
                         testing::Combine(testing::ValuesIn(launches),
                                          testing::Values(device::Kind::cpu, device::Kind::cuda)),
                         [](const auto& of) {
                           const bool on_cpu = std::get<1>(of.param) == device::Kind::cpu;
                           return std::string(std::get<0>(of.param).name) +
                                  (on_cpu ? "_cpu" : "_gpu");
                         });

const Launch& launch_of(std::string_view name) {
  return *std::ranges::find(launches, name, &Launch::name);
}

TEST(DryRun, RanksOfAnExpertAxisAreAlike) {
  EXPECT_EQ(rank_classes(setup_of(launch_of("experts"))).first, std::vector<int>{0});
}

/// All it receives more is rows of its experts.
TEST(StepPlan, TheBusiestExpertRankHasMoreRows) {
  const auto setup = setup_of(launch_of("experts"));
  const auto h = hardware(device::Kind::cuda);
  const auto uniform = plan_step(setup, h);
  const auto busiest = plan_step(setup, h, 0, 4, nullptr, 2);
  const auto of = [](const StepPlan& plan, device::MemoryUse use) {
    return plan.at_peak[static_cast<std::size_t>(use)];
  };
  EXPECT_GT(busiest.seconds, uniform.seconds);
  EXPECT_GT(of(busiest, device::MemoryUse::expert_parallel),
            of(uniform, device::MemoryUse::expert_parallel));
  EXPECT_EQ(of(busiest, device::MemoryUse::gathered_weights),
            of(uniform, device::MemoryUse::gathered_weights));
  EXPECT_EQ(busiest.traffic.at("shard"), uniform.traffic.at("shard"));
}

TEST(DryRun, RanksWithPartialSumsAreOtherClassesAndTheFullestOfThemIsFound) {
  const auto setup = setup_of(launch_of("two_by_two_by_two"));
  const auto classes = rank_classes(setup);
  EXPECT_GT(classes.first.size(), 1U);
  EXPECT_LT(classes.first.size(), 8U);
  const auto h = hardware(device::Kind::cuda);
  const auto fullest = plan_fullest_rank(setup, h);
  EXPECT_EQ(fullest.rank, 2);  // norms are at the end of their units
  EXPECT_GT(fullest.peak, plan_step(setup, h, 0).peak);
}

TEST(DryRun, GroupsOfAnAxisMayBeOnDifferentNumbersOfNodes) {
  const auto setup = setup_of(launch_of("groups_on_one_node_and_on_two"));
  // Along tensor and along shard, the one group of two is on one machine, the other one on both.
  EXPECT_EQ(peak_memory_candidates(setup), (std::vector<int>{0, 1, 2, 3}));
}

TEST(DryRun, ARankThatIsTakenForAnotherOneIsFound) {
  const auto setup = setup_of(launch_of("shared_kv_heads"));
  auto classes = rank_classes(setup);
  ASSERT_GT(classes.first.size(), 1U);
  ASSERT_NE(classes.of_rank[0], classes.of_rank[7]);
  classes.of_rank[7] = classes.of_rank[0];
  EXPECT_NE(violation([&] { dry_run(setup, hardware(device::Kind::cuda), classes); }), "none");
}

}  // namespace
}  // namespace llamesh::plan
