#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "optim/optimizer.hpp"
#include "runs/whole_run.hpp"
#include "train/health/state_hash.hpp"

// With train.reproducible: mesh, runs on different meshes are compared to the bit.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;
using sharding::Strategy;

/// A tensor in the state, or a part: its elements from `first` on.
struct Part {
  std::string name;
  std::int64_t first;
  std::vector<float> values;
};

/// A run's results on a rank.
struct Bits {
  std::vector<double> losses, norms, validated;
  std::vector<Part> state;
  train::StateHashes hashes;  ///< for the whole state
};

/// Returns this rank's parts, which are element ranges, for masters and moments.
std::vector<Part> state_of(const train::Setup& setup, const sharding::ShardedState& state) {
  std::vector<Part> all;
  const auto add = [&](const sharding::ShardedTensor& tensor) {
    for (std::size_t u = 0; u < setup.layout->units().size(); ++u) {
      if (!tensor.shards[u]) continue;
      for (const auto& piece : setup.layout->pieces(u, state.rank())) {
        const auto& parameter = (*setup.table)[piece.parameter];
        if (tensor.has != nullptr && !tensor.has(parameter)) continue;
        std::vector<float> values(static_cast<std::size_t>(piece.count));
        sharding::download_values(tensor.memory, values, tensor.of(u, piece));
        all.push_back({parameter.name + ' ' + tensor.name,
                       setup.layout->range(piece, state.rank()).begin, std::move(values)});
      }
    }
  };
  add(state.masters());
  for (const auto& moment : state.moments()) add(moment);
  return all;
}

Bits run_for_bits(const comm::Communicator& ranks, const train::Inputs& in) {
  const auto setup = plan::make_planned_setup(ranks, in);
  comm::DeviceMesh mesh(ranks, setup.topology, setup.mesh);
  train::Trainer trainer(ranks, setup, mesh);
  trainer.start();
  Bits bits;
  while (trainer.step() < in.train.steps) {
    const auto record = trainer.train_step();
    bits.losses.push_back(record.loss);
    bits.norms.push_back(record.grad_norm);
    if (trainer.step() % 3 == 0) bits.validated.push_back(trainer.evaluate().loss);
  }
  bits.state = state_of(setup, trainer.state());
  bits.hashes = train::hash_state(ranks, trainer.state());
  return bits;
}

void expect_equal(const Bits& expected, const Bits& seen) {
  EXPECT_EQ(seen.losses, expected.losses);
  EXPECT_EQ(seen.norms, expected.norms);
  EXPECT_EQ(seen.validated, expected.validated);
  EXPECT_EQ(seen.hashes, expected.hashes);
}

/// Expects each part to have the bits of the same elements on one rank, which has tensors whole.
void expect_bits_of(const Bits& alone, const Bits& seen) {
  expect_equal(alone, seen);
  std::map<std::string, const Part*> whole;
  for (const auto& part : alone.state) {
    ASSERT_EQ(part.first, 0) << part.name;
    whole[part.name] = &part;
  }
  for (const auto& part : seen.state) {
    ASSERT_TRUE(whole.contains(part.name)) << part.name;
    const auto& expected = whole.at(part.name)->values;
    ASSERT_LE(part.first + std::ssize(part.values), std::ssize(expected)) << part.name;
    EXPECT_EQ(std::memcmp(part.values.data(), expected.data() + part.first,
                          part.values.size() * sizeof(float)),
              0)
        << part.name << " from element " << part.first;
  }
}

/// A family, small, with four layers.
model::ModelConfig model_of(const std::string& family) {
  auto m = small_inputs(TemporaryFolder().path()).model;
  m.family = family;
  m.num_hidden_layers = 4;
  m.vocab_size = 258;
  if (family == "gpt2") m.num_key_value_heads = 6, m.max_position_embeddings = 64;
  if (family == "gemma2") m.sliding_window = 5;
  if (family == "qwen3_moe")
    m.num_experts = 5, m.num_experts_per_tok = 2, m.moe_intermediate_size = 30,
    m.router_z_loss_coef = 0.01;
  if (family == "glm4_moe")
    m.num_experts = 5, m.num_experts_per_tok = 2, m.router_bias_update_rate = 1e-3,
    m.moe_intermediate_size = m.shared_expert_intermediate_size = 30, m.first_k_dense_replace = 1;
  m.tie_word_embeddings = family == "gpt2" || family == "gemma2";
  return m;
}

/// All that decides the bits.
struct Recipe {
  const char* family = "llama";
  DType parameters = DType::f32;
  optim::OptimizerName optimizer = optim::OptimizerName::adamw;
  DType moments = DType::f32;
  std::optional<model::Lora> lora = std::nullopt;
  bool document_mask = false;
  model::LinearPrecision linear = model::LinearPrecision::same;
};

train::Inputs inputs_of(const Recipe& recipe, const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.model = model_of(recipe.family);
  in.model.lora = recipe.lora;
  in.precision.parameters = recipe.parameters;
  in.precision.linear = recipe.linear;
  in.optimizer.name = recipe.optimizer;
  in.optimizer.moments = recipe.moments;
  in.data.sequence_length = 16;
  in.data.document_mask = recipe.document_mask;
  in.data.validation = in.data.train;
  in.evaluate.every_steps = 3;
  in.evaluate.sequences = 11;
  in.train.steps = 6;
  in.train.global_batch = 16;
  in.train.reproducible = train::Reproducible::mesh;
  return in;
}

/// Draws a launch on this many ranks: all that must not change the bits, while `in` has the tensor
/// and context ranks.
void draw_launch(train::Inputs& in, int ranks, std::mt19937& random) {
  const auto one_of = [&]<class T>(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
  };
  const int all = ranks, together = in.mesh.tensor * in.mesh.context;
  ranks /= together;
  const bool may_have_stages = !in.model.tie_word_embeddings && !in.model.lora;
  in.mesh.pipeline = may_have_stages ? std::min(ranks, one_of({1, 1, 2, 4})) : 1;
  const int left = ranks / in.mesh.pipeline;
  in.mesh.replicate = std::min(left, one_of({1, 2, 4}));
  in.mesh.shard = left / in.mesh.replicate;
  const bool may_cross_nodes = in.mesh.shard == 1 || in.mesh.replicate == 1;
  if (may_cross_nodes && ranks > 1)
    in.mesh.ranks_per_node = one_of({0, together, std::max(together, all / 2)});
  const bool has_context = in.mesh.context > 1;
  in.sharding.strategy = in.mesh.shard == 1 && !has_context ? Strategy::no_shard
                         : in.mesh.replicate > 1
                             ? one_of({Strategy::hybrid_shard, Strategy::hybrid_shard_zero2})
                             : one_of({Strategy::full_shard, Strategy::shard_grad_op});
  in.sharding.reduce = one_of(
      {sharding::Reduce::each, has_context ? sharding::Reduce::automatic : sharding::Reduce::last});
  if (in.mesh.shard > 1)
    in.sharding.reshard_after_forward =
        one_of({sharding::ReshardAfterForward::by_strategy, sharding::ReshardAfterForward::yes});
  in.sharding.wrap.wrap =
      one_of({sharding::Wrap::layer, sharding::Wrap::size, sharding::Wrap::none});
  in.sharding.wrap.min_numel = 2500;
  in.sharding.prefetch = one_of({0, 1, 3});
  if (in.optimizer.name != optim::OptimizerName::muon)
    in.sharding.offload =
        one_of({sharding::Offload::none, sharding::Offload::optimizer, sharding::Offload::all});
  in.memory.activation_checkpointing =
      one_of({ActivationCheckpointing::none, ActivationCheckpointing::selective,
              ActivationCheckpointing::full});
  if (in.sharding.wrap.wrap == sharding::Wrap::layer && in.mesh.pipeline == 2)
    in.pipeline.chunks = one_of({1, 2});
  in.train.micro_batch = one_of({1, 2});
  in.train.threads = one_of({1, 2, 3});
}

std::string describe_launch(const Recipe& recipe, const train::Inputs& in) {
  return fmt::format(
      "{} {} optimizer {}: pipeline {} x {}, replicate {}, shard {}, context {}, tensor {} with "
      "residual {}, {} ranks a node, {}, reduce {}, wrap {}, prefetch {}, offload {}, "
      "checkpointing {}, micro-batch {}, {} threads",
      recipe.family, name_of(recipe.parameters), static_cast<int>(recipe.optimizer),
      in.mesh.pipeline, in.pipeline.chunks, in.mesh.replicate, in.mesh.shard, in.mesh.context,
      in.mesh.tensor, name_in_inputs(in.tensor.residual), in.mesh.ranks_per_node,
      sharding::name_of(in.sharding.strategy), static_cast<int>(in.sharding.reduce),
      static_cast<int>(in.sharding.wrap.wrap), in.sharding.prefetch,
      static_cast<int>(in.sharding.offload), static_cast<int>(in.memory.activation_checkpointing),
      in.train.micro_batch, in.train.threads);
}

const Recipe recipes[] = {
    {},
    {.parameters = DType::bf16, .moments = DType::bf16},
    {.family = "qwen3_moe", .document_mask = true},
    {.family = "gpt2", .parameters = DType::bf16},
    {.optimizer = optim::OptimizerName::muon},
    {.family = "glm4_moe"},
    {.lora = model::Lora{.rank = 3, .alpha = 7}},
    {.family = "gemma2", .optimizer = optim::OptimizerName::sgd},
    {.family = "apertus", .parameters = DType::bf16},
    {.family = "qwen3", .document_mask = true},
    {.parameters = DType::bf16, .linear = model::LinearPrecision::fp8},
    {.family = "glm4_moe", .linear = model::LinearPrecision::fp8},
};

// With 1, 2, 4 and 8 ranks: 48 launches.
TEST(MeshReproducible, EveryLaunchHasTheBitsOfOneRank) {
  std::mt19937 random(static_cast<unsigned>(world().size()));  // NOLINT(cert-msc51-cpp)
  for (const auto& recipe : recipes) {
    const SharedFolder folder;
    auto in = inputs_of(recipe, folder.path());
    auto plain = in;
    plain.run.folder += "-alone";
    const auto alone = run_for_bits(world().split(world().rank(), 0), plain);
    draw_launch(in, world().size(), random);
    SCOPED_TRACE(describe_launch(recipe, in));
    expect_bits_of(alone, run_for_bits(world(), in));
  }
}

// Bits depend on tensor and context ranks: launches with equally many agree.
TEST(MeshReproducible, EveryLaunchHasTheBitsOfItsTensorAndContextRanks) {
  const int ranks = world().size();
  if (ranks == 1) GTEST_SKIP() << "needs tensor or context ranks";
  std::mt19937 random(static_cast<unsigned>(ranks));  // NOLINT(cert-msc51-cpp)
  std::vector<comm::MeshOptions> sizes{{.tensor = 2}, {.context = 2}};
  if (ranks > 2) sizes.push_back({.context = 2, .tensor = 2});
  const std::size_t first = ranks == 2 ? 0 : ranks == 4 ? 1 : 2;  // each takes a third
  for (std::size_t i = first; i < std::size(recipes); i += 3) {
    const auto& recipe = recipes[i];
    const SharedFolder folder;
    auto in = inputs_of(recipe, folder.path());
    const bool needs_whole = recipe.optimizer == optim::OptimizerName::muon;
    in.mesh = needs_whole ? comm::MeshOptions{.context = 2} : sizes[i / 3 % sizes.size()];
    if (in.model.family != "gpt2") in.model.num_key_value_heads = 2;
    const bool takes_hidden = recipe.family != std::string("gpt2");
    in.tensor.residual =
        std::array{sharding::ResidualLayout::sequence, sharding::ResidualLayout::whole,
                   takes_hidden ? sharding::ResidualLayout::hidden
                                : sharding::ResidualLayout::whole}[random() % 3];
    auto plain = in;
    plain.run.folder += "-alone";
    plain.sharding.strategy = Strategy::full_shard;
    const int together = in.mesh.tensor * in.mesh.context;
    const auto expected =
        run_for_bits(world().split(world().rank() / together, world().rank() % together), plain);
    draw_launch(in, ranks, random);
    SCOPED_TRACE(describe_launch(recipe, in));
    expect_equal(expected, run_for_bits(world(), in));
  }
}

/// Makes all dims of a model divisible among eight tensor ranks; more than two share a kv head.
void divide_by_eight(model::ModelConfig& model) {
  model.hidden_size = 64;
  model.num_attention_heads = 8;
  model.num_key_value_heads = model.family == "gpt2" ? 8 : 2;
  model.intermediate_size = 56;
  model.vocab_size = 264;
  if (model.num_experts > 0) model.moe_intermediate_size = 32;
  if (model.shared_expert_intermediate_size > 0) model.shared_expert_intermediate_size = 32;
}

/// Draws a power of two up to `most`.
int draw_size(int most, std::mt19937& random) {
  return 1 << random() % static_cast<unsigned>(std::bit_width(static_cast<unsigned>(most)));
}

// A rank stands for several tensor and context ranks of another mesh.
TEST(MeshReproducible, VirtualRanksHaveTheBitsOfRealOnes) {
  const int ranks = world().size();
  if (ranks == 1) GTEST_SKIP() << "needs ranks to compare with";
  std::mt19937 random(static_cast<unsigned>(ranks));       // NOLINT(cert-msc51-cpp)
  std::vector<std::pair<int, int>> sizes{{1, 2}, {2, 1}};  // context and tensor ranks
  if (ranks >= 4) sizes = {{2, 2}, {1, 4}, {4, 1}, {1, 2}, {2, 1}};
  if (ranks == 8) sizes = {{1, 8}, {2, 4}, {4, 2}, {8, 1}, {2, 2}};
  const std::size_t every = ranks == 8 ? 2 : 1;
  for (std::size_t i = 0; i < std::size(recipes); i += every) {
    const auto& recipe = recipes[i];
    if (recipe.optimizer == optim::OptimizerName::muon) continue;  // takes whole matrices
    const SharedFolder folder;
    auto in = inputs_of(recipe, folder.path());
    divide_by_eight(in.model);
    const auto [context, tensor] = sizes[i / every % sizes.size()];
    const bool takes_hidden = recipe.family != std::string("gpt2");
    in.tensor.residual =
        std::array{sharding::ResidualLayout::sequence, sharding::ResidualLayout::whole,
                   takes_hidden ? sharding::ResidualLayout::hidden
                                : sharding::ResidualLayout::whole}[random() % 3];
    auto real = in;
    real.run.folder += "-real";
    real.mesh.context = context;
    real.mesh.tensor = tensor;
    real.sharding.strategy = Strategy::full_shard;
    const int together = context * tensor;
    const auto expected =
        run_for_bits(world().split(world().rank() / together, world().rank() % together), real);
    in.train.reproducible_context = context;
    in.train.reproducible_tensor = tensor;
    const auto base = in;
    do {
      in = base;
      in.mesh.context = draw_size(context, random);
      in.mesh.tensor = in.mesh.context < context ? 1 : draw_size(tensor, random);
      draw_launch(in, ranks, random);
      in.sharding.wrap.min_numel = 10'000;  // more than a layer's matrices
    } while ((in.mesh.context == context && in.mesh.tensor == tensor) ||
             (in.mesh.pipeline > 1 && in.tensor.residual != sharding::ResidualLayout::sequence));
    SCOPED_TRACE(fmt::format("{} context and {} tensor ranks on {}", context, tensor,
                             describe_launch(recipe, in)));
    expect_equal(expected, run_for_bits(world(), in));
  }
}

// Two chunks on a rank route one micro-batch between them.
TEST(MeshReproducible, InterleavedChunksCountEachTokenOnce) {
  if (world().size() != 4) GTEST_SKIP() << "needs two stages of two ranks";
  const SharedFolder folder;
  auto in = inputs_of({.family = "glm4_moe"}, folder.path());
  auto plain = in;
  plain.run.folder += "-alone";
  const auto alone = run_for_bits(world().split(world().rank(), 0), plain);
  in.mesh = {.shard = 2, .pipeline = 2};
  in.sharding.strategy = Strategy::full_shard;
  in.pipeline.chunks = 2;
  expect_bits_of(alone, run_for_bits(world(), in));
}

/// Returns a run's losses and norms by step.
std::map<std::int64_t, std::pair<double, double>> recorded(const train::Inputs& in) {
  std::map<std::int64_t, std::pair<double, double>> steps;
  std::ifstream file(in.run.folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (entry.contains("grad_norm"))
      steps[entry.at("step")] = {entry.at("loss"), entry.at("grad_norm")};
  }
  return steps;
}

TEST(MeshReproducible, ARunContinuesOnAnotherMeshWithTheSameBits) {
  const int ranks = world().size();
  if (ranks == 1) GTEST_SKIP() << "needs another mesh";
  const SharedFolder folder;
  auto in = inputs_of({}, folder.path());
  in.checkpoint.every_steps = 3;
  in.mesh = {.replicate = 2, .shard = ranks / 2};
  in.sharding.strategy = ranks > 2 ? Strategy::hybrid_shard : Strategy::no_shard;
  run_to_the_end(in);
  auto other = in;
  other.run.folder += "-other";
  other.checkpoint.resume = checkpoint_of(in, "03");
  other.mesh = {.shard = ranks / 2, .pipeline = 2};
  other.sharding.strategy = Strategy::full_shard;
  run_to_the_end(other);
  auto expected = recorded(in);
  std::erase_if(expected, [](const auto& step) { return step.first <= 3; });
  EXPECT_EQ(expected.size(), 3U);
  EXPECT_EQ(recorded(other), expected);
  const auto config = in.model.resolved();
  const auto table = parameter_table(config);
  const auto weights_of = [&](const train::Inputs& run) {
    const auto at = checkpoint::locate(checkpoint_of(run, "06"));
    return stored_weights(*checkpoint::open_model(at, config, table), table);
  };
  EXPECT_TRUE(weights_of(other) == weights_of(in));
}

}  // namespace
}  // namespace llamesh::test
