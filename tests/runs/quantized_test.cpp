#include <gtest/gtest.h>

#include <random>

#include "checkpoint/format/format.hpp"
#include "core/hash.hpp"
#include "plan/step_plan.hpp"
#include "runs/whole_run.hpp"

// Whole runs whose weights and gradients cross nodes as int8 or int4.

namespace llamesh::test {
namespace {

using sharding::GatherDType;
using sharding::ReduceDType;
using sharding::ReshardAfterForward;
using sharding::Strategy;

train::Inputs quantized_inputs(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.model.num_key_value_heads = 2;
  in.model.vocab_size = 258;
  in.data.sequence_length = 16;
  in.train.global_batch = 24;
  in.train.steps = 6;
  in.checkpoint.every_steps = 0;
  return in;
}

/// Draws a mesh of this many ranks on nodes, and what is quantized.
void draw_mesh(train::Inputs& in, int ranks, std::mt19937& random) {
  const auto one_of = [&]<class T>(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
  };
  const auto divisor = [&](int of, std::initializer_list<int> wanted) {
    const int drawn = one_of(wanted);
    return of % drawn == 0 ? drawn : 1;
  };
  in.mesh.ranks_per_node = divisor(ranks, {1, 2, ranks / 2});
  int left = ranks;
  in.mesh.tensor = in.mesh.ranks_per_node % 2 == 0 ? divisor(left, {1, 1, 2}) : 1;
  left /= in.mesh.tensor;
  in.mesh.context = divisor(left, {1, 1, 2});
  left /= in.mesh.context;
  in.mesh.replicate = divisor(left, {1, 1, 2, 3});
  in.mesh.shard = left / in.mesh.replicate;
  in.sharding.strategy = in.mesh.replicate > 1
                             ? one_of({Strategy::hybrid_shard, Strategy::hybrid_shard_zero2})
                             : one_of({Strategy::full_shard, Strategy::shard_grad_op});
  in.sharding.reshard_after_forward =
      in.mesh.shard % 2 == 0 && in.mesh.shard > 2
          ? one_of({ReshardAfterForward::by_strategy, ReshardAfterForward{2}})
          : ReshardAfterForward::by_strategy;
  in.sharding.gather = one_of({GatherDType::automatic, GatherDType::int8, GatherDType::int8});
  in.sharding.gather_within_node = in.sharding.gather == GatherDType::int8 && one_of({false, true});
  in.sharding.reduce_dtype =
      one_of({ReduceDType::automatic, ReduceDType::int8, ReduceDType::int8, ReduceDType::int4});
  in.sharding.error_feedback = in.mesh.replicate > 1 && one_of({false, true});
  in.sharding.reduce = one_of({sharding::Reduce::each, sharding::Reduce::last});
  in.sharding.offload =
      one_of({sharding::Offload::none, sharding::Offload::none, sharding::Offload::all});
  in.sharding.wrap.wrap =
      one_of({sharding::Wrap::layer, sharding::Wrap::size, sharding::Wrap::none});
  in.sharding.wrap.min_numel = 2500;
  in.precision.reduce = one_of({DType::f32, DType::f32, DType::bf16});
}

/// Draws until there is something to quantize.
void draw_fitting(train::Inputs& in, int ranks, std::mt19937& random) {
  const auto fits = [&] {
    if (in.sharding.gather == GatherDType::automatic &&
        in.sharding.reduce_dtype == ReduceDType::automatic)
      return false;
    try {
      train::plan_setup(in, comm::discover_topology(world(), in.mesh.ranks_per_node));
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  do draw_mesh(in, ranks, random);
  while (!fits());
}

std::string describe_mesh(const train::Inputs& in) {
  return fmt::format(
      "replicate {}, shard {}, context {}, tensor {}, {} per node, {}, reshard {}, gather {}{}, "
      "reduce {} at {}, offload {}, wrap {}",
      in.mesh.replicate, in.mesh.shard, in.mesh.context, in.mesh.tensor, in.mesh.ranks_per_node,
      sharding::name_of(in.sharding.strategy), static_cast<int>(in.sharding.reshard_after_forward),
      static_cast<int>(in.sharding.gather), in.sharding.gather_within_node ? " everywhere" : "",
      static_cast<int>(in.sharding.reduce_dtype), static_cast<int>(in.sharding.reduce),
      static_cast<int>(in.sharding.offload), static_cast<int>(in.sharding.wrap.wrap));
}

// With 2, 4, 6 and 8 ranks: 40 meshes.
TEST(Quantized, TrainsAlmostLikeOneRankOnEveryMesh) {
  if (world().size() == 1) return;
  std::mt19937 random(static_cast<unsigned>(world().size()));  // NOLINT(cert-msc51-cpp)
  std::vector<double> alone;
  for (int i = 0; i < 10; ++i) {
    const SharedFolder folder;
    auto in = quantized_inputs(folder.path());
    if (alone.empty()) alone = run_alone(in).losses;
    draw_fitting(in, world().size(), random);
    SCOPED_TRACE(describe_mesh(in));
    const auto seen = run(world(), in);
    const double tolerance = in.sharding.reduce_dtype == ReduceDType::int4 ? 0.03 : 0.005;
    ASSERT_EQ(seen.losses.size(), alone.size());
    for (std::size_t step = 0; step < alone.size(); ++step)
      EXPECT_NEAR(seen.losses[step], alone[step], tolerance * alone[step]) << step + 1;
    if (i < 3) {
      const auto again = run(world(), in);
      EXPECT_EQ(again.losses, seen.losses);
      EXPECT_EQ(again.masters, seen.masters);
    }
  }
}

/// Runs two steps and returns the last one's record.
train::StepRecord record_of(const train::Inputs& in) {
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  trainer.train_step();
  return trainer.train_step();
}

TEST(Quantized, RecordsItsErrors) {
  if (world().size() != 4) return;
  const SharedFolder folder;
  auto in = quantized_inputs(folder.path());
  in.mesh.ranks_per_node = 2;
  in.sharding.strategy = Strategy::full_shard;
  const auto plain = record_of(in);
  EXPECT_FALSE(plain.weight_quantization_error.has_value());
  EXPECT_FALSE(plain.gradient_quantization_error.has_value());
  in.sharding.gather = GatherDType::int8;
  in.sharding.reduce_dtype = ReduceDType::int4;
  const auto quantized = record_of(in);
  // Normal numbers: the largest of 256 is near 2.9, an error is evenly spread over a step.
  EXPECT_NEAR(quantized.weight_quantization_error.value(), 2.9 / 127 / std::sqrt(12.0), 0.003);
  EXPECT_GT(quantized.gradient_quantization_error.value(), 0.05);
  EXPECT_LT(quantized.gradient_quantization_error.value(), 0.3);
  EXPECT_FALSE(quantized.replica_quantization_error.has_value());
}

// Secondary shards are the codes that the forward pass has gathered.
TEST(Quantized, GivesTheSameBitsFromSecondaryShards) {
  if (world().size() != 4) return;
  for (const auto& [per_node, reduce] :
       {std::pair(2, ReduceDType::int8), std::pair(1, ReduceDType::automatic)})
    for (const auto dtype : {DType::f32, DType::bf16}) {
      const SharedFolder folder;
      auto in = quantized_inputs(folder.path());
      in.mesh.ranks_per_node = per_node;
      in.precision.parameters = dtype;
      in.sharding.strategy = Strategy::full_shard;
      in.sharding.gather = GatherDType::int8;
      in.sharding.reduce_dtype = reduce;
      const auto plain = run(world(), in);
      in.sharding.reshard_after_forward = ReshardAfterForward{2};
      const auto secondary = run(world(), in);
      EXPECT_EQ(secondary.losses, plain.losses);
      EXPECT_EQ(secondary.masters, plain.masters);
    }
}

// What lies below the lowest trained layer is entered without a backward pass, and prefetches that.
TEST(Quantized, GivesTheSameBitsFromSecondaryShardsAboveFrozenLayers) {
  if (world().size() != 4) return;
  const SharedFolder folder;
  auto in = quantized_inputs(folder.path());
  in.mesh.ranks_per_node = 2;
  in.sharding.strategy = Strategy::full_shard;
  in.sharding.gather = GatherDType::int8;
  in.train.trained.freeze = {"model.embed_tokens", "model.layers.0"};
  const auto plain = run(world(), in);
  in.sharding.reshard_after_forward = ReshardAfterForward{2};
  EXPECT_EQ(run(world(), in).masters, plain.masters);
}

// Of 8 bytes between nodes for each weight (bf16 twice, fp32 once), about 2 are left.
TEST(Quantized, SendsAQuarterOfTheBytesBetweenNodes) {
  if (world().size() != 4) return;
  const SharedFolder folder;
  auto in = quantized_inputs(folder.path());
  in.model.hidden_size = 96;
  in.model.intermediate_size = 256;
  in.mesh.ranks_per_node = 2;
  in.precision.parameters = DType::bf16;
  in.sharding.strategy = Strategy::full_shard;
  in.sharding.reduce = sharding::Reduce::last;
  in.train.global_batch = 4;
  const auto bytes = [&] {
    const auto record = record_of(in);
    const auto at = record.traffic_between_nodes.find("shard");
    return static_cast<double>(at->second);
  };
  const double plain = bytes();
  in.sharding.reshard_after_forward = ReshardAfterForward{2};
  in.sharding.gather = GatherDType::int8;
  in.sharding.reduce_dtype = ReduceDType::int8;
  EXPECT_LT(bytes(), 0.27 * plain);
}

/// Returns a hash of this rank's weights of which the ranks along the axis tensor hold copies.
std::string hash_of_copies(const train::Trainer& trainer) {
  const auto& layout = trainer.state().layout();
  const auto tensor = layout.dims().tensor();
  RunningHash hash;
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    for (const auto& piece : layout.pieces(u, world().rank())) {
      const auto copied = layout.placement(piece.parameter).replicated(layout.dims()) & tensor;
      if (copied != tensor) continue;
      const auto values = trainer.state().masters().of(u, piece).span<float>();
      hash.add(values.data(), values.size_bytes());
    }
  return std::to_string(hash.value());
}

/// Trains, and expects the same copies on all ranks along the axis tensor.
void expect_same_copies(const train::Inputs& in) {
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  while (trainer.step() < in.train.steps) trainer.train_step();
  const auto hashes = world().all_gather(hash_of_copies(trainer));
  for (const int rank : setup.mesh.group(setup.mesh.tensor(), world().rank()))
    EXPECT_EQ(hashes[static_cast<std::size_t>(rank)], hash_of_copies(trainer)) << "rank " << rank;
}

// Norm weights lie in one block with rows of which each rank has others.
TEST(Quantized, LeavesCopiesOnTensorRanksTheSame) {
  if (world().size() % 4 != 0) return;
  const SharedFolder folder;
  auto in = quantized_inputs(folder.path());
  in.mesh.ranks_per_node = world().size() / 2;
  in.mesh.tensor = 2;
  in.mesh.replicate = 2;
  in.sharding.strategy = Strategy::hybrid_shard;
  using enum sharding::ResidualLayout;
  for (const auto residual : {sequence, whole}) {
    SCOPED_TRACE(residual == whole ? "whole" : "sequence");
    in.tensor.residual = residual;
    in.optimizer.outer = {};
    in.sharding.reduce_dtype = ReduceDType::int4;
    for (const bool feedback : {false, true}) {
      in.sharding.error_feedback = feedback;
      expect_same_copies(in);
    }
    in.sharding.reduce_dtype = ReduceDType::automatic;
    in.sharding.error_feedback = false;
    in.optimizer.outer = {.every_steps = 2, .reduce_dtype = ReduceDType::int4};
    expect_same_copies(in);
  }
}

/// Returns inputs for two replicas on nodes of their own, whose errors are fed back.
train::Inputs feedback_inputs(const std::filesystem::path& folder) {
  auto in = quantized_inputs(folder);
  in.mesh.ranks_per_node = world().size() / 2;
  in.mesh.replicate = 2;
  in.sharding.strategy = Strategy::hybrid_shard;
  in.sharding.reduce_dtype = ReduceDType::int4;
  in.sharding.error_feedback = true;
  in.train.steps = 12;
  in.checkpoint.every_steps = 5;
  return in;
}

std::vector<float> errors_of(const train::Inputs& in, const char* step, int replica) {
  return dataset(in, step, checkpoint::replica_path(replica, "/gradient_errors/lm_head.weight"));
}

bool any_set(const std::vector<float>& values) {
  return std::ranges::any_of(values, [](float value) { return value != 0; });
}

// With all that divides a replica's state: a shard of errors is its rank's own.
TEST(Quantized, ResumesExactlyWithErrorFeedback) {
  if (world().size() % 4 != 0) return;
  const auto train_and_resume = [](auto change) {
    const SharedFolder folder;
    auto in = feedback_inputs(folder.path());
    change(in);
    run_to_the_end(in);
    for (const int replica : {0, 1}) {
      EXPECT_TRUE(any_set(errors_of(in, "05", replica)));
      EXPECT_NE(errors_of(in, "05", replica), errors_of(in, "10", replica));
    }
    EXPECT_NE(errors_of(in, "05", 0), errors_of(in, "05", 1));
    auto other = in;
    other.run.folder += "-other";
    other.checkpoint.resume = checkpoint_of(in, "05");
    run_to_the_end(other);
    EXPECT_EQ(dataset(other, "12", "/model/lm_head.weight"),
              dataset(in, "12", "/model/lm_head.weight"));
    EXPECT_EQ(errors_of(other, "12", 1), errors_of(in, "12", 1));
  };
  train_and_resume([](auto&) {});
  train_and_resume([](auto& in) { in.mesh.tensor = 2; });
  train_and_resume([](auto& in) { in.mesh.pipeline = 2; });
  train_and_resume([](auto& in) { in.mesh.context = 2; });
}

TEST(Quantized, ResumesFromMemoryWithErrorFeedback) {
  if (world().size() % 4 != 0) return;
  const SharedFolder folder;
  auto in = feedback_inputs(folder.path());
  in.checkpoint.every_steps = 0;
  run_to_the_end(in);
  const auto unbroken = dataset(in, "12", "/model/lm_head.weight");
  in.run.folder += "-killed";
  in.checkpoint.memory.every_steps = 5;
  train_and_vanish(in, 7);
  run_to_the_end(in);
  EXPECT_EQ(dataset(in, "12", "/model/lm_head.weight"), unbroken);
}

// Otherwise one infinite gradient would stay in the errors for ever.
TEST(Quantized, AStepWithoutAnUpdateLeavesNoErrors) {
  if (world().size() % 4 != 0) return;
  const SharedFolder folder;
  auto in = feedback_inputs(folder.path());
  in.train.on_nonfinite = train::OnNonfinite::skip;
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  const auto has_errors = [&] {
    bool found = false;
    for (const auto& shard : trainer.state().gradient_errors()->shards)
      found = found || std::ranges::any_of(shard.span<float>(), [](float e) { return e != 0; });
    return found;
  };
  const auto set_a_weight = [&](float value) {
    const float old =
        std::exchange(trainer.state().masters().shards.back().span<float>()[0], value);
    world().barrier();  // ranks on a node gather from one another's memory
    trainer.on_master_weights_loaded();
    return old;
  };
  EXPECT_EQ(trainer.train_step().skipped, "");
  EXPECT_TRUE(has_errors());
  const float old = set_a_weight(INFINITY);
  EXPECT_NE(trainer.train_step().skipped, "");
  EXPECT_FALSE(has_errors());
  set_a_weight(old);
  const auto record = trainer.train_step();
  EXPECT_TRUE(record.is_finite());
  EXPECT_TRUE(has_errors());
}

// Errors are parts of one sum: on other replica counts they are dropped. Saves step 5 again.
TEST(Quantized, DropsErrorsOfOtherReplicas) {
  if (world().size() % 4 != 0) return;
  const SharedFolder folder;
  const auto in = feedback_inputs(folder.path());
  run_to_the_end(in);
  const auto resume_with = [&](int replicas, bool feedback) {
    auto other = in;
    other.run.folder += fmt::format("-{}-{}", replicas, feedback);
    other.checkpoint.resume = checkpoint_of(in, "05");
    other.mesh.replicate = replicas;
    other.sharding.error_feedback = feedback;
    other.train.steps = 5;
    run_to_the_end(other);
    EXPECT_EQ(dataset(other, "05", "/model/lm_head.weight"),
              dataset(in, "05", "/model/lm_head.weight"));
    return other;
  };
  EXPECT_EQ(errors_of(resume_with(2, true), "05", 1), errors_of(in, "05", 1));
  const auto more = resume_with(4, true);
  for (const int replica : {0, 1, 2, 3}) {
    EXPECT_FALSE(errors_of(more, "05", replica).empty());
    EXPECT_FALSE(any_set(errors_of(more, "05", replica)));
  }
  EXPECT_TRUE(errors_of(resume_with(2, false), "05", 0).empty());
}

// A run that has lost nodes goes on with those that are left.
TEST(Quantized, GoesOnWithOneNode) {
  if (world().size() != 4) return;
  for (const bool feedback : {false, true}) {
    const SharedFolder folder;
    auto in = feedback ? feedback_inputs(folder.path()) : quantized_inputs(folder.path());
    in.train.steps = 6;
    if (!feedback) {
      in.mesh.ranks_per_node = 2;
      in.sharding.strategy = Strategy::full_shard;
      in.sharding.gather = GatherDType::int8;
      in.sharding.reduce_dtype = ReduceDType::int4;
    }
    run_to_the_end(in);
    in.mesh.ranks_per_node = 0;
    in.train.steps = 8;
    run_to_the_end(in);
    EXPECT_TRUE(std::filesystem::exists(checkpoint_of(in, "08")));
  }
}

TEST(Quantized, RefusesErrorsThatNothingFeedsBack) {
  if (world().size() != 4) return;
  const SharedFolder folder;
  const auto refusal = [&](auto change) {
    auto in = feedback_inputs(folder.path());
    change(in);
    return error_of(
        [&] { train::plan_setup(in, comm::discover_topology(world(), in.mesh.ranks_per_node)); });
  };
  EXPECT_EQ(refusal([](auto& in) { in.sharding.reduce_dtype = ReduceDType::automatic; }),
            "sharding.error_feedback is true, but gradients in full precision leave nothing out; "
            "set sharding.reduce_dtype to int8 or int4");
  EXPECT_EQ(refusal([](auto& in) { in.sharding.offload = sharding::Offload::all; }),
            "sharding.error_feedback is true, but with sharding.offload the errors are not on the "
            "device; set it to false");
  EXPECT_EQ(refusal([](auto& in) {
              in.mesh.replicate = 1;
              in.sharding.strategy = Strategy::full_shard;
            }),
            "sharding.error_feedback is true, but full_shard over 4 ranks on 2 nodes scatters "
            "gradients to other nodes, and errors are kept only between replicas; use "
            "hybrid_shard or no_shard, or set it to false");
  EXPECT_EQ(refusal([](auto& in) {
              in.model.family = "mixtral";
              in.model.num_experts = 4;
              in.model.num_experts_per_tok = 2;
              in.mesh.expert = 2;
              in.sharding.strategy = Strategy::no_shard;
            }),
            "sharding.error_feedback is true, but not all gradients are summed over the same "
            "replicas (experts with no_shard, or sharding.spec); set it to false");
  EXPECT_EQ(
      refusal([](auto& in) {
        in.mesh.replicate = 1;
        in.mesh.tensor = 2;
        in.tensor.residual = sharding::ResidualLayout::whole;
        in.sharding.error_feedback = false;
        in.sharding.strategy = Strategy::full_shard;
      }),
      "sharding.reduce_dtype is int4, but the ranks along tensor hold copies of "
      "model.layers.0.input_layernorm.weight, whose gradients would be rounded differently on "
      "each; set tensor.residual to sequence, or leave sharding.reduce_dtype out");
}

TEST(Quantized, RefusesWhatHasNothingToQuantize) {
  const SharedFolder folder;
  const auto plain = quantized_inputs(folder.path());
  const auto refusal = [&](auto change) {
    auto in = plain;
    in.sharding.strategy = Strategy::full_shard;
    change(in);
    return error_of([&] { train::plan_setup(in, comm::discover_topology(world(), 0)); });
  };
  const int ranks = world().size();
  EXPECT_EQ(
      refusal([](auto& in) { in.sharding.gather = GatherDType::int8; }),
      fmt::format("sharding.gather is int8, but full_shard over {} rank{} on 1 node gathers no "
                  "weights from other nodes; leave it out, or set "
                  "sharding.gather_within_node",
                  ranks, ranks == 1 ? "" : "s"));
  EXPECT_EQ(
      refusal([](auto& in) { in.sharding.reduce_dtype = ReduceDType::int4; }),
      fmt::format("sharding.reduce_dtype is int4, but full_shard over {} rank{} on 1 node sends "
                  "no gradients to other nodes; leave it out",
                  ranks, ranks == 1 ? "" : "s"));
  EXPECT_EQ(refusal([](auto& in) { in.sharding.gather_within_node = true; }),
            "sharding.gather_within_node is true, but sharding.gather is auto; set that to int8 "
            "or fp8, or leave both out");
}

}  // namespace
}  // namespace llamesh::test
