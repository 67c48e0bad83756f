#include <gtest/gtest.h>

#include <random>

#include "checkpoint/format/format.hpp"
#include "plan/step_plan.hpp"
#include "runs/whole_run.hpp"

// Whole runs whose replicas train apart and exchange what they have learned (optimizer.outer).

namespace llamesh::test {
namespace {

using optim::OptimizerName;
using optim::OuterName;
using sharding::ReduceDType;
using sharding::Strategy;

/// Returns inputs with two replicas.
train::Inputs outer_inputs(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.model.num_key_value_heads = 2;
  in.model.vocab_size = 258;
  in.data.sequence_length = 16;
  in.train.global_batch = 24;
  in.train.steps = 7;
  in.checkpoint.every_steps = 0;
  in.sharding.strategy = Strategy::hybrid_shard;
  in.mesh.replicate = 2;
  in.optimizer.outer.every_steps = 3;
  return in;
}

/// Draws how the ranks of a replica share its work, and what is exchanged when.
void draw_replicas(train::Inputs& in, int ranks, std::mt19937& random) {
  const auto one_of = [&]<class T>(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
  };
  int left = ranks / 2;
  for (int* axis : {&in.mesh.pipeline, &in.mesh.tensor, &in.mesh.context})
    if (left % 2 == 0 && one_of({false, true})) {
      *axis = 2;
      left /= 2;
    }
  in.mesh.shard = left;
  in.sharding.strategy = one_of({Strategy::hybrid_shard, Strategy::hybrid_shard_zero2});
  in.sharding.reduce = one_of({sharding::Reduce::automatic, sharding::Reduce::each});
  in.sharding.offload =
      one_of({sharding::Offload::none, sharding::Offload::none, sharding::Offload::all});
  in.sharding.wrap = {.wrap = one_of({sharding::Wrap::layer, sharding::Wrap::none})};
  in.model.tie_word_embeddings = one_of({false, true});
  in.optimizer.name = in.mesh.tensor == 1 && in.sharding.offload == sharding::Offload::none
                          ? one_of({OptimizerName::adamw, OptimizerName::muon})
                          : OptimizerName::adamw;
  auto& outer = in.optimizer.outer;
  outer.every_steps = one_of({1, 2, 3, 4});
  outer.name = one_of({OuterName::nesterov, OuterName::sgd});
}

/// Returns what the run gives on pairs of ranks: a replica is a rank by itself.
Outcome run_on_pairs(train::Inputs in) {
  const auto pair = world().split(world().rank() / 2, world().rank());
  in.mesh = {};
  in.sharding.strategy = Strategy::no_shard;
  in.sharding.offload = sharding::Offload::none;
  in.run.folder += "-pair";
  return run(pair, in);
}

// With 2, 4 and 8 ranks: 24 meshes.
TEST(Outer, ReplicasLearnTheSameOnEveryMesh) {
  std::mt19937 random(static_cast<unsigned>(world().size()));  // NOLINT(cert-msc51-cpp)
  for (int i = 0; i < 8; ++i) {
    const SharedFolder folder;
    auto in = outer_inputs(folder.path());
    draw_replicas(in, world().size(), random);
    SCOPED_TRACE(fmt::format(
        "pipeline {}, tensor {}, context {}, {}, offload {}, every {}", in.mesh.pipeline,
        in.mesh.tensor, in.mesh.context, sharding::name_of(in.sharding.strategy),
        static_cast<int>(in.sharding.offload), in.optimizer.outer.every_steps));
    const auto expected = run_on_pairs(in);
    const auto seen = run(world(), in);
    for (std::size_t s = 0; s < expected.losses.size(); ++s) {
      EXPECT_NEAR(seen.losses[s], expected.losses[s], 2e-5 * expected.losses[s]) << s + 1;
      EXPECT_NEAR(seen.norms[s], expected.norms[s], 5e-4 * expected.norms[s]) << s + 1;
    }
    if (i >= 3) continue;
    const auto again = run(world(), in);
    EXPECT_EQ(again.losses, seen.losses);
    EXPECT_EQ(again.masters, seen.masters);
  }
}

// One step apart, then the mean: gradients could as well be averaged.
TEST(Outer, ExchangesInEveryStepByPlainSgdAreDataParallelTraining) {
  const SharedFolder folder;
  auto in = outer_inputs(folder.path());
  in.optimizer.name = OptimizerName::sgd;
  in.optimizer.beta1 = 0;
  in.optimizer.lr = 0.1;
  in.optimizer.clip_norm = 0;
  in.optimizer.outer = {.every_steps = 1, .name = OuterName::sgd, .lr = 1};
  const auto apart = run(world(), in);
  in.optimizer.outer = {};
  const auto together = run(world(), in);
  ASSERT_EQ(apart.losses.size(), together.losses.size());
  for (std::size_t s = 0; s < apart.losses.size(); ++s)
    EXPECT_NEAR(apart.losses[s], together.losses[s], 1e-6 * together.losses[s]) << s + 1;
  ASSERT_EQ(apart.masters.size(), together.masters.size());
  for (std::size_t i = 0; i < apart.masters.size(); ++i)
    ASSERT_NEAR(apart.masters[i], together.masters[i], 1e-6);
}

TEST(Outer, QuantizedExchangesLearnAlmostTheSame) {
  if (world().size() < 4) return;
  const SharedFolder folder;
  auto in = outer_inputs(folder.path());
  in.mesh.ranks_per_node = world().size() / 2;
  in.train.steps = 12;
  const auto plain = run(world(), in);
  for (const auto& [dtype, tolerance] :
       {std::pair(ReduceDType::int8, 0.003), std::pair(ReduceDType::int4, 0.02)})
    for (const std::int64_t delay : {0, 1}) {
      in.optimizer.outer.reduce_dtype = dtype;
      in.optimizer.outer.delay_steps = delay;
      in.optimizer.outer.local_share = 0;
      const auto seen = run(world(), in);
      const auto again = run(world(), in);
      EXPECT_EQ(again.masters, seen.masters);
      if (delay > 0) continue;
      for (std::size_t s = 0; s < plain.losses.size(); ++s)
        EXPECT_NEAR(seen.losses[s], plain.losses[s], tolerance * plain.losses[s]) << s + 1;
    }
}

/// Cases that save while replicas are apart, and while an exchange is under way.
const optim::OuterOptions resumed[] = {
    {.every_steps = 4},
    {.every_steps = 4, .fragments = 2, .delay_steps = 2},
    {.every_steps = 5, .name = OuterName::sgd, .lr = 1, .delay_steps = 3, .local_share = 0.25},
};

std::vector<float> weights_at(const train::Inputs& in, const char* step) {
  const auto config = in.model.resolved();
  const auto table = parameter_table(config);
  const auto at = checkpoint::locate(checkpoint_of(in, step));
  return stored_weights(*checkpoint::open_model(at, config, table), table);
}

/// Reads a replica's own tensors for the head.
std::vector<std::vector<float>> own_of(const train::Inputs& in, const char* step, int replica) {
  std::vector<std::vector<float>> tensors;
  for (const auto* group : {"/model", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"})
    tensors.push_back(
        dataset(in, step, checkpoint::replica_path(replica, group) + "/lm_head.weight"));
  return tensors;
}

TEST(Outer, ResumesExactlyBetweenExchanges) {
  for (const auto& outer : resumed) {
    const SharedFolder folder;
    auto in = outer_inputs(folder.path());
    in.optimizer.outer = outer;
    in.train.steps = 12;
    in.checkpoint.every_steps = 5;
    run_to_the_end(in);
    auto other = in;
    other.run.folder += "-other";
    other.checkpoint.resume = checkpoint_of(in, "05");
    run_to_the_end(other);
    EXPECT_EQ(weights_at(other, "12"), weights_at(in, "12"));
    for (const int replica : {0, 1}) {
      const auto own = own_of(in, "12", replica);
      EXPECT_FALSE(own.front().empty());
      EXPECT_EQ(own_of(other, "12", replica), own);
    }
    EXPECT_NE(own_of(in, "10", 0), own_of(in, "10", 1));
    // At the end all have exchanged everything: the weights are the replicas'.
    EXPECT_EQ(own_of(in, "12", 0).front(), own_of(in, "12", 1).front());
    EXPECT_EQ(own_of(in, "12", 0).front(), dataset(in, "12", "/model/lm_head.weight"));
  }
}

// An exchange under way belongs to fragments that the run must have.
TEST(Outer, RefusesOtherFragmentsWhileAnExchangeIsUnderWay) {
  const SharedFolder folder;
  auto in = outer_inputs(folder.path());
  in.optimizer.outer = {.every_steps = 4, .fragments = 2, .delay_steps = 3};
  in.checkpoint.every_steps = 5;
  run_to_the_end(in);
  const auto saved = checkpoint::read_manifest(checkpoint_of(in, "05")).progress.exchanges;
  ASSERT_TRUE(saved.has_value());
  EXPECT_EQ(saved->units, 5);
  EXPECT_EQ(saved->sent_after, (std::vector<std::int64_t>{4, 0}));
  EXPECT_FALSE(checkpoint::read_manifest(checkpoint_of(in, "07")).progress.exchanges.has_value());
  in.optimizer.outer.fragments = 1;
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.restore_exchanges(std::nullopt);
  const auto refusal = left_by([&] { trainer.restore_exchanges(saved); }, ExitCode::bad_input);
  EXPECT_EQ(refusal,
            world().rank() > 0
                ? "follows"
                : "the checkpoint was made while an exchange of 2 fragments in 5 units was under "
                  "way (optimizer.outer.delay_steps), this run has 1 in 5; restore "
                  "optimizer.outer.fragments and sharding.wrap, or resume from another checkpoint");
}

TEST(Outer, ResumesExactlyWithErrorFeedback) {
  if (world().size() < 4) return;
  const SharedFolder folder;
  auto in = outer_inputs(folder.path());
  in.mesh.ranks_per_node = world().size() / 2;
  in.optimizer.outer = {.every_steps = 2, .reduce_dtype = ReduceDType::int4};
  in.train.steps = 12;
  in.checkpoint.every_steps = 5;
  run_to_the_end(in);
  const auto without = weights_at(in, "12");
  in.optimizer.outer.error_feedback = true;
  in.run.folder += "-feedback";
  run_to_the_end(in);
  EXPECT_NE(weights_at(in, "12"), without);
  const auto error = checkpoint::replica_path(1, "/optimizer/outer_error") + "/lm_head.weight";
  EXPECT_NE(dataset(in, "05", error), dataset(in, "10", error));
  auto other = in;
  other.run.folder += "-other";
  other.checkpoint.resume = checkpoint_of(in, "05");
  run_to_the_end(other);
  EXPECT_EQ(weights_at(other, "12"), weights_at(in, "12"));
}

TEST(Outer, ResumesFromMemory) {
  const SharedFolder folder;
  auto in = outer_inputs(folder.path());
  in.optimizer.outer = {.every_steps = 4, .delay_steps = 2};
  in.train.steps = 12;
  in.mesh.ranks_per_node = world().size() / 2;
  run_to_the_end(in);
  const auto unbroken = weights_at(in, "12");
  in.run.folder += "-killed";
  in.checkpoint.memory.every_steps = 5;
  train_and_vanish(in, 7);
  run_to_the_end(in);
  EXPECT_EQ(weights_at(in, "12"), unbroken);
}

/// Saves the same step again with other replicas.
TEST(Outer, OnOtherReplicasEachTakesASavedOne) {
  if (world().size() < 4) return;
  const SharedFolder folder;
  auto in = outer_inputs(folder.path());
  in.checkpoint.every_steps = 5;
  run_to_the_end(in);
  auto more = in;
  more.run.folder += "-more";
  more.checkpoint.resume = checkpoint_of(in, "05");
  more.mesh.replicate = 4;
  more.train.steps = 5;
  run_to_the_end(more);
  for (const int replica : {0, 1, 2, 3})
    EXPECT_EQ(own_of(more, "05", replica), own_of(in, "05", replica % 2)) << replica;
  EXPECT_EQ(weights_at(more, "05"), weights_at(in, "05"));
  auto fewer = more;
  fewer.run.folder = in.run.folder + "-fewer";
  fewer.checkpoint.resume = checkpoint_of(more, "05");
  fewer.mesh.replicate = 2;
  run_to_the_end(fewer);
  for (const int replica : {0, 1})
    EXPECT_EQ(own_of(fewer, "05", replica), own_of(in, "05", replica)) << replica;
}

TEST(Outer, DoesNotMixWithReplicasThatTrainedTogether) {
  const SharedFolder folder;
  auto in = outer_inputs(folder.path());
  in.checkpoint.every_steps = 5;
  const auto refusal = [&](const train::Inputs& from, const train::Inputs& to) {
    const auto setup = plan::make_planned_setup(world(), to);
    comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
    const train::Trainer trainer(world(), setup, mesh);
    const auto manifest = checkpoint::read_manifest(checkpoint_of(from, "05"));
    return error_of([&] {
      check_fits(
          manifest,
          checkpoint::state_of(trainer.state()).from_replicas({.apart = 2, .with_errors = 0}),
          checkpoint::OtherGroups::refuse);
    });
  };
  auto together = in;
  together.run.folder += "-together";
  together.optimizer.outer = {};
  for (const auto& each : {in, together}) run_to_the_end(each);
  const std::string remedy =
      "; restore optimizer.name and optimizer.outer, or export it with llamesh convert and start a "
      "new run from that folder (model.hf)";
  EXPECT_EQ(refusal(in, together),
            "the checkpoint has no /optimizer/exp_avg/model.embed_tokens.weight" + remedy);
  EXPECT_EQ(refusal(together, in),
            "the checkpoint has no /optimizer/outer_momentum/model.embed_tokens.weight" + remedy);
}

// All replicas start from the weights that were drawn.
TEST(Outer, BeginsWithTheSameWeightsInAllReplicas) {
  const SharedFolder folder;
  const auto in = outer_inputs(folder.path());
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  const auto& state = trainer.state();
  for (std::size_t u = 0; u < setup.layout->units().size(); ++u) {
    const auto own = state.masters().shards[u].span<float>();
    const auto outer = state.outer().front().shards[u].span<float>();
    EXPECT_TRUE(std::ranges::equal(own, outer));
    EXPECT_TRUE(std::ranges::any_of(outer, [](float w) { return w != 0; }));
  }
}

TEST(Outer, RefusesInt8WithinANode) {
  const SharedFolder folder;
  auto in = outer_inputs(folder.path());
  const auto refusal = [&] {
    return error_of([&] { train::plan_setup(in, comm::discover_topology(world(), 0)); });
  };
  in.optimizer.outer.reduce_dtype = ReduceDType::int8;
  EXPECT_EQ(
      refusal(),
      fmt::format("optimizer.outer.reduce_dtype is int8, but the replicas of the mesh "
                  "replicate=2 x shard={} are on one node, so nothing is sent to other nodes; "
                  "leave it out",
                  world().size() / 2));
  in.optimizer.outer.every_steps = 0;
  EXPECT_EQ(refusal(),
            "optimizer.outer.reduce_dtype is set, but optimizer.outer.every_steps is 0, so "
            "replicas train together; set both, or leave both out");
}

}  // namespace
}  // namespace llamesh::test
