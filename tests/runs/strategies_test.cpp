#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "config/inputs.hpp"
#include "runs/small_run.hpp"
#include "sharding/compile_spec.hpp"

namespace llamesh::test {
namespace {

using sharding::Strategy;
using sharding::Wrap;

/// Returns rank 0's values.
std::vector<double> broadcast(const std::vector<double>& values) {
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * 8);
  const auto received = world().broadcast(bytes);
  std::vector<double> all(received.size() / 8);
  std::memcpy(all.data(), received.data(), received.size());
  return all;
}

/// Returns rank 0's run_alone(), shared by all cases that look equal to a single rank.
const Outcome& reference(const train::Inputs& inputs) {
  static std::map<std::string, Outcome> known;
  auto asked = inputs;
  asked.run.folder.clear();
  asked.data.train.clear();  // the same text in every folder
  asked.mesh = {};
  asked.sharding = {};
  asked.tensor = {};
  auto [found, is_new] = known.try_emplace(config::to_yaml(asked));
  if (is_new) {
    auto& outcome = found->second;
    const auto alone = world().split(world().rank(), 0);
    if (world().rank() == 0) outcome = run_alone(inputs, alone);
    outcome.losses = broadcast(outcome.losses);
    outcome.norms = broadcast(outcome.norms);
  }
  return found->second;
}

void expect_same_losses(const Outcome& seen, const Outcome& expected) {
  ASSERT_EQ(seen.losses.size(), expected.losses.size());
  EXPECT_LT(expected.losses.back(), 0.9 * expected.losses.front()) << "the run learnt nothing";
  for (std::size_t i = 0; i < seen.losses.size(); ++i) {
    EXPECT_NEAR(seen.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(seen.norms[i], expected.norms[i], 1e-3 * expected.norms[i]) << "step " << i + 1;
  }
}

/// Returns the ranks per node for the most telling mesh: 2 nodes if possible.
int ranks_per_node() {
  return world().size() % 2 == 0 ? world().size() / 2 : 0;
}

struct Case {
  Strategy strategy;
  Wrap wrap = Wrap::layer;
  bool tied = false;
  std::int64_t micro_batch = 1;
  int prefetch = 1;
  model::ActivationCheckpointing recompute = model::ActivationCheckpointing::none;
  std::int64_t full_layers = 0;
  sharding::Reduce reduce = sharding::Reduce::each;
};

Case reduced_once(Strategy strategy, Wrap wrap = Wrap::layer) {
  return {.strategy = strategy, .wrap = wrap, .reduce = sharding::Reduce::last};
}

std::string describe(const Case& c) {
  const char* wraps[] = {"layer", "size", "none"};
  const char* recomputes[] = {"", "_selective", "_full"};
  return fmt::format("{}_{}_{}_micro{}_prefetch{}{}{}{}", sharding::name_of(c.strategy),
                     wraps[static_cast<int>(c.wrap)], c.tied ? "tied" : "untied", c.micro_batch,
                     c.prefetch, recomputes[static_cast<int>(c.recompute)],
                     c.full_layers > 0 ? fmt::format("_full{}", c.full_layers) : "",
                     c.reduce == sharding::Reduce::last ? "_reduced_once" : "");
}

train::Inputs inputs_of(const Case& c, const TemporaryFolder& folder) {
  train::Inputs in = small_inputs(folder.path());
  in.train.steps = 10;
  in.sharding.strategy = c.strategy;
  in.sharding.wrap = {c.wrap, 2500};  // by size, a layer's attention and MLP are separate units
  in.sharding.prefetch = c.prefetch;
  in.sharding.reduce = c.reduce;
  in.memory.activation_checkpointing = c.recompute;
  in.memory.full_checkpointing_layers = c.full_layers;
  in.model.tie_word_embeddings = c.tied;
  in.train.micro_batch = c.micro_batch;
  in.train.global_batch = 12 * c.micro_batch;
  in.mesh.ranks_per_node = ranks_per_node();
  return in;
}

/// Checks that a short second run gives bit-identical losses and norms.
void expect_same_again(train::Inputs in, const Outcome& seen) {
  in.train.steps = 5;  // within the warm-up, whatever follows
  const auto again = run(world(), in);
  for (std::size_t i = 0; i < again.losses.size(); ++i) {
    EXPECT_EQ(again.losses[i], seen.losses[i]) << "two runs differ in step " << i + 1;
    EXPECT_EQ(again.norms[i], seen.norms[i]) << "two runs differ in step " << i + 1;
  }
}

class EveryStrategy : public testing::TestWithParam<Case> {};

TEST_P(EveryStrategy, GivesTheLossesOfOneRank) {
  const TemporaryFolder folder;
  const auto in = inputs_of(GetParam(), folder);
  const auto seen = run(world(), in);
  expect_same_losses(seen, reference(in));
  expect_same_again(in, seen);
}

INSTANTIATE_TEST_SUITE_P(
    Training, EveryStrategy,
    testing::Values(
        Case{Strategy::full_shard}, Case{Strategy::shard_grad_op}, Case{Strategy::no_shard},
        Case{Strategy::hybrid_shard}, Case{Strategy::hybrid_shard_zero2},
        Case{Strategy::hybrid_shard, Wrap::size}, Case{Strategy::full_shard, Wrap::size, true},
        Case{Strategy::hybrid_shard, Wrap::none}, Case{Strategy::hybrid_shard, Wrap::layer, true},
        Case{Strategy::hybrid_shard, Wrap::layer, false, 2},
        Case{Strategy::full_shard, Wrap::layer, true, 1, 0},
        Case{Strategy::full_shard, Wrap::size, false, 1, 1,
             model::ActivationCheckpointing::selective},
        Case{Strategy::shard_grad_op, Wrap::size, false, 1, 1,
             model::ActivationCheckpointing::full},
        Case{Strategy::hybrid_shard, Wrap::layer, true, 1, 1, model::ActivationCheckpointing::full},
        Case{Strategy::hybrid_shard, Wrap::size, false, 1, 1,
             model::ActivationCheckpointing::selective, 1},
        reduced_once(Strategy::full_shard), reduced_once(Strategy::shard_grad_op, Wrap::size),
        reduced_once(Strategy::hybrid_shard), reduced_once(Strategy::hybrid_shard_zero2)),
    [](const auto& c) { return describe(c.param); });

class EveryMesh : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(EveryMesh, GivesTheLossesOfOneRank) {
  const auto [replicate, shard] = GetParam();
  if (replicate * shard != world().size()) return;  // for another rank count
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.mesh = {.replicate = replicate, .shard = shard};
  expect_same_losses(run(world(), in), reference(in));
}

INSTANTIATE_TEST_SUITE_P(Meshes, EveryMesh,
                         testing::Values(std::pair{1, 1}, std::pair{4, 1}, std::pair{1, 4},
                                         std::pair{2, 2}, std::pair{6, 1}, std::pair{1, 6},
                                         std::pair{3, 2}, std::pair{2, 3}));

/// Returns a spec that leaves some of a layer's weights unsharded and shards one over all data
/// ranks.
sharding::Spec spec_in_part() {
  sharding::Spec spec;
  for (const char* name : {"model.embed_tokens", "lm_head", "model.layers.*.self_attn.q_proj",
                           "model.layers.*.mlp.gate_proj", "model.layers.1.mlp.up_proj"})
    spec.entries.push_back({name + std::string(".weight"), {{"shard"}, {}}, "test"});
  spec.entries.push_back(
      {"model.layers.*.self_attn.k_proj.weight", {{}, {"replicate", "shard"}}, "test"});
  return spec;
}

TEST(EverySpec, GivesTheLossesOfOneRank) {
  for (const auto strategy : {Strategy::full_shard, Strategy::hybrid_shard_zero2})
    for (const bool tied : {false, true}) {
      const TemporaryFolder folder;
      Case c{strategy, tied ? Wrap::size : Wrap::layer, tied};
      if (tied) c.recompute = model::ActivationCheckpointing::full;
      auto in = inputs_of(c, folder);
      in.sharding.spec = spec_in_part();
      const auto outcome = run(world(), in);
      expect_same_losses(outcome, reference(in));
      EXPECT_EQ(run(world(), in).masters, outcome.masters);
    }
}

TEST(EverySpec, StaysNearFp32InBf16) {
  const TemporaryFolder folder;
  auto in = inputs_of({Strategy::hybrid_shard}, folder);
  in.sharding.spec = spec_in_part();
  const auto exact = reference(in);
  in.precision = {DType::bf16, DType::bf16};
  const auto rounded = run(world(), in);
  EXPECT_EQ(run(world(), in).masters, rounded.masters);
  for (std::size_t i = 0; i < exact.losses.size(); ++i)
    EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.03 * exact.losses[i]) << "step " << i + 1;
}

/// Meshes with a tensor axis, for a model whose heads and intermediate size divide; the vocabulary
/// is padded.
struct TensorCase {
  int replicate, shard, tensor;
  sharding::ResidualLayout residual = sharding::ResidualLayout::sequence;
  Strategy strategy = Strategy::hybrid_shard;
  Wrap wrap = Wrap::layer;
  bool tied = false;
  model::ActivationCheckpointing recompute = model::ActivationCheckpointing::none;
  std::int64_t kv_heads = 0;  ///< 0: enough for the axis
};

train::Inputs inputs_of(const TensorCase& c, const TemporaryFolder& folder) {
  auto in = small_inputs(folder.path());
  in.train.steps = 10;
  in.model.hidden_size = 48;
  in.model.intermediate_size = 60;
  in.model.num_attention_heads = 12;
  in.model.num_key_value_heads = c.kv_heads != 0 ? c.kv_heads : c.tensor == 3 ? 3 : 4;
  in.model.vocab_size = 261;
  in.model.tie_word_embeddings = c.tied;
  in.data.sequence_length = 24;
  in.mesh = {.replicate = c.replicate, .shard = c.shard, .tensor = c.tensor};
  in.tensor.residual = c.residual;
  in.sharding.strategy = c.strategy;
  in.sharding.wrap = {c.wrap, 2500};
  in.memory.activation_checkpointing = c.recompute;
  return in;
}

class EveryTensorMesh : public testing::TestWithParam<TensorCase> {};

TEST_P(EveryTensorMesh, GivesTheLossesOfOneRank) {
  const auto& c = GetParam();
  if (c.replicate * c.shard * c.tensor != world().size()) return;  // for another rank count
  const TemporaryFolder folder;
  const auto in = inputs_of(c, folder);
  const auto seen = run(world(), in);
  expect_same_losses(seen, reference(in));
  expect_same_again(in, seen);
}

using enum sharding::ResidualLayout;
using enum model::ActivationCheckpointing;
INSTANTIATE_TEST_SUITE_P(
    Meshes, EveryTensorMesh,
    testing::Values(
        TensorCase{1, 1, 4}, TensorCase{1, 1, 4, whole},
        TensorCase{1, 2, 2, sequence, Strategy::full_shard, Wrap::size},
        TensorCase{1, 2, 2, whole, Strategy::full_shard, Wrap::layer, true},
        TensorCase{2, 1, 2, sequence, Strategy::no_shard, Wrap::layer, true},
        TensorCase{1, 2, 2, sequence, Strategy::shard_grad_op, Wrap::size, false, full},
        TensorCase{2, 1, 2, whole, Strategy::hybrid_shard, Wrap::none, true, selective},
        TensorCase{1, 2, 3, sequence, Strategy::hybrid_shard, Wrap::layer, true, full},
        TensorCase{2, 1, 3, whole}, TensorCase{3, 1, 2}, TensorCase{1, 3, 2},
        TensorCase{2, 2, 2, sequence, Strategy::hybrid_shard, Wrap::size, true},
        TensorCase{2, 2, 2, whole, Strategy::hybrid_shard_zero2},
        TensorCase{1, 2, 4, sequence, Strategy::full_shard, Wrap::none},
        TensorCase{1, 1, 4, hidden}, TensorCase{1, 2, 2, hidden},
        TensorCase{2, 1, 2, hidden, Strategy::no_shard, Wrap::layer, true, full},
        TensorCase{1, 2, 2, hidden, Strategy::hybrid_shard, Wrap::size, true, selective},
        TensorCase{2, 1, 3, hidden, Strategy::hybrid_shard, Wrap::none},
        TensorCase{2, 2, 2, hidden, Strategy::hybrid_shard_zero2},
        TensorCase{1, 1, 4, sequence, Strategy::full_shard, Wrap::layer, false, none, 2},
        TensorCase{1, 2, 2, whole, Strategy::full_shard, Wrap::size, true, none, 1},
        TensorCase{1, 2, 3, hidden, Strategy::full_shard, Wrap::none, false, full, 1},
        TensorCase{2, 1, 4, sequence, Strategy::hybrid_shard, Wrap::layer, true, selective, 2}));

// Unsharded norms have gradients that are partial sums along the tensor axis as well.
TEST(EverySpec, TakesATensorAxis) {
  if (world().size() != 4) return;
  for (const auto residual : {sequence, whole}) {
    const TemporaryFolder folder;
    auto in = inputs_of(TensorCase{1, 2, 2}, folder);
    in.sharding.spec = sharding::builtin_spec(
        model::parameter_table(in.model.resolved()),
        comm::ParallelDims({{"replicate", 1}, {"shard", 2}, {"tensor", 2}}), residual);
    std::erase_if(in.sharding.spec->entries, [](const sharding::SpecEntry& entry) {
      return entry.name.ends_with("norm.weight");
    });
    expect_same_losses(run(world(), in), reference(in));
  }
}

TEST(TensorParallel, InBf16StaysNearFp32) {
  if (world().size() != 4) return;
  for (const auto residual : {sequence, whole, hidden}) {
    const TemporaryFolder folder;
    auto in = inputs_of(TensorCase{1, 2, 2, residual}, folder);
    const auto exact = reference(in);
    in.precision.parameters = DType::bf16;
    const auto rounded = run(world(), in);
    for (std::size_t i = 0; i < exact.losses.size(); ++i)
      EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.03 * exact.losses[i]) << "step " << i + 1;
  }
}

TEST(Replicas, HoldTheSameBits) {
  const TemporaryFolder folder;
  auto in = small_inputs(folder.path());
  in.mesh.ranks_per_node = ranks_per_node();
  const auto outcome = run(world(), in);
  const std::string mine(reinterpret_cast<const char*>(outcome.masters.data()),
                         outcome.masters.size() * sizeof(float));
  const auto all = world().all_gather(mine);
  const auto setup = plan::make_planned_setup(world(), in);
  const int shard = setup.layout->units()[0].shards;
  for (int r = 0; r < world().size(); ++r)
    EXPECT_TRUE(all[static_cast<std::size_t>(r)] == all[static_cast<std::size_t>(r % shard)])
        << "rank " << r;
}

// In bf16 every unit is gathered into a copy: one that outlived the step would be stale.
TEST(Bf16, RecomputingChangesNothing) {
  for (const auto wrap : {Wrap::layer, Wrap::size}) {
    const TemporaryFolder folder;
    auto in = inputs_of({Strategy::hybrid_shard, wrap}, folder);
    in.precision.parameters = DType::bf16;
    const auto kept = run(world(), in);
    using enum model::ActivationCheckpointing;
    for (const auto& [how, full_layers] :
         {std::pair{selective, 0}, std::pair{full, 0}, std::pair{none, 1}}) {
      in.memory.activation_checkpointing = how;
      in.memory.full_checkpointing_layers = full_layers;
      EXPECT_EQ(run(world(), in).losses, kept.losses);
    }
  }
}

TEST(Bf16, StaysNearFp32AndIsReproducible) {
  for (const auto strategy : {Strategy::full_shard, Strategy::hybrid_shard,
                              Strategy::hybrid_shard_zero2, Strategy::no_shard}) {
    for (const auto reduce : {DType::f32, DType::bf16}) {
      const TemporaryFolder folder;
      auto in = inputs_of({strategy}, folder);
      const auto exact = reference(in);
      in.precision = {DType::bf16, reduce};
      const auto rounded = run(world(), in);
      EXPECT_EQ(run(world(), in).masters, rounded.masters);
      for (std::size_t i = 0; i < exact.losses.size(); ++i)
        EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.03 * exact.losses[i])
            << sharding::name_of(strategy) << " step " << i + 1;
    }
  }
}

}  // namespace
}  // namespace llamesh::test
