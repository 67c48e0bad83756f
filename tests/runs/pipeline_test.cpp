#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "plan/step_plan.hpp"
#include "runs/whole_run.hpp"

// Whole runs of models whose layers are divided among pipeline stages.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;
using sharding::Strategy;

/// Returns inputs for a model with eight layers, whose step has as many micro-batches as most
/// meshes of up to eight ranks need.
train::Inputs pipeline_inputs(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.model.num_hidden_layers = 8;
  in.model.num_key_value_heads = 2;
  in.model.vocab_size = 258;
  in.data.sequence_length = 16;
  in.train.global_batch = 24;
  in.train.steps = 4;
  in.checkpoint.every_steps = 0;
  return in;
}

void expect_like_one_rank(const Outcome& seen, const Outcome& expected) {
  ASSERT_EQ(seen.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < seen.losses.size(); ++i) {
    EXPECT_NEAR(seen.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(seen.norms[i], expected.norms[i], 2e-4 * expected.norms[i]) << "step " << i + 1;
  }
}

/// Draws a mesh of this many ranks with stages, and all that may go with them.
void draw(train::Inputs& in, int ranks, std::mt19937& random) {
  const auto one_of = [&]<class T>(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
  };
  const auto divisor = [&](int of, std::initializer_list<int> wanted) {
    const int drawn = one_of(wanted);
    return of % drawn == 0 ? drawn : 1;
  };
  int left = ranks;
  in.mesh.pipeline = ranks % 3 == 0 ? one_of({2, 3}) : std::min(ranks, one_of({2, 2, 4, 8}));
  left /= in.mesh.pipeline;
  in.mesh.tensor = divisor(left, {1, 2});
  left /= in.mesh.tensor;
  in.mesh.context = divisor(left, {1, 2});
  left /= in.mesh.context;
  in.mesh.replicate = divisor(left, {1, 2, 3});
  in.mesh.shard = left / in.mesh.replicate;
  in.sharding.strategy = in.mesh.replicate > 1
                             ? one_of({Strategy::hybrid_shard, Strategy::hybrid_shard_zero2})
                             : one_of({Strategy::full_shard, Strategy::shard_grad_op});
  in.sharding.reduce = one_of({sharding::Reduce::automatic, sharding::Reduce::each});
  in.sharding.reshard_after_forward =
      one_of({sharding::ReshardAfterForward::by_strategy, sharding::ReshardAfterForward::yes});
  in.sharding.wrap.wrap =
      one_of({sharding::Wrap::layer, sharding::Wrap::size, sharding::Wrap::none});
  in.sharding.wrap.min_numel = 2500;
  in.sharding.offload =
      one_of({sharding::Offload::none, sharding::Offload::none, sharding::Offload::all});
  in.tensor.residual = one_of({sharding::ResidualLayout::sequence, sharding::ResidualLayout::whole,
                               sharding::ResidualLayout::hidden});
  in.memory.activation_checkpointing =
      one_of({ActivationCheckpointing::none, ActivationCheckpointing::selective,
              ActivationCheckpointing::full});
  in.memory.activation_offload = one_of({false, true});
  const bool may_have_chunks =
      in.mesh.pipeline <= 4 && in.sharding.wrap.wrap == sharding::Wrap::layer;
  in.pipeline.chunks = may_have_chunks ? one_of({1, 2}) : 1;
  in.model.tie_word_embeddings = one_of({false, true});
}

std::string describe(const train::Inputs& in) {
  return fmt::format(
      "pipeline {} x {}, replicate {}, shard {}, context {}, tensor {}, {}, wrap {}, tied {}, "
      "offload {}, checkpointing {}, activation offload {}",
      in.mesh.pipeline, in.pipeline.chunks, in.mesh.replicate, in.mesh.shard, in.mesh.context,
      in.mesh.tensor, sharding::name_of(in.sharding.strategy),
      static_cast<int>(in.sharding.wrap.wrap), in.model.tie_word_embeddings,
      static_cast<int>(in.sharding.offload), static_cast<int>(in.memory.activation_checkpointing),
      in.memory.activation_offload);
}

// With 2, 4, 6 and 8 ranks: 32 meshes.
TEST(Pipeline, GivesTheLossesOfOneRankOnEveryMesh) {
  std::mt19937 random(static_cast<unsigned>(world().size()));  // NOLINT(cert-msc51-cpp)
  std::map<bool, Outcome> alone;                               // by tied embeddings
  for (int i = 0; i < 8; ++i) {
    const SharedFolder folder;
    auto in = pipeline_inputs(folder.path());
    draw(in, world().size(), random);
    SCOPED_TRACE(describe(in));
    auto& expected = alone[in.model.tie_word_embeddings];
    if (expected.losses.empty()) {
      auto plain = in;
      plain.sharding = {};
      plain.tensor = {};
      plain.memory = {};
      expected = run_alone(plain);
    }
    const auto seen = run(world(), in);
    expect_like_one_rank(seen, expected);
    if (i < 2) {
      const auto again = run(world(), in);
      EXPECT_EQ(again.losses, seen.losses);
      EXPECT_EQ(again.masters, seen.masters);
    }
  }
}

/// Returns a small model of a family with four layers.
model::ModelConfig four_layers_of(const std::string& family) {
  model::ModelConfig m = small_inputs(TemporaryFolder().path()).model;
  m.family = family;
  m.num_hidden_layers = 4;
  m.num_key_value_heads = family == "gpt2" ? 6 : 2;
  m.vocab_size = 258;
  if (family == "gpt2") m.max_position_embeddings = 29, m.tie_word_embeddings = true;
  if (family == "gemma3_text" || family == "gemma2") m.sliding_window = 5;
  if (family == "gemma2") m.attn_logit_softcapping = 0.5, m.final_logit_softcapping = 3;
  const bool biased = family == "glm4_moe" || family == "deepseek_v3";
  if (family == "gpt_oss") m.attention_bias = true, m.sliding_window = 5;
  if (family == "mixtral" || family == "qwen3_moe" || family == "gpt_oss" || biased) {
    m.num_experts = 5, m.num_experts_per_tok = 2;
    if (!biased) m.router_z_loss_coef = 0.01;
  }
  if (biased)
    m.moe_intermediate_size = m.shared_expert_intermediate_size = 30, m.first_k_dense_replace = 1,
    m.router_bias_update_rate = 1e-3;
  if (family == "deepseek_v3") {
    m.num_key_value_heads = m.num_attention_heads, m.head_dim = 0;
    m.q_lora_rank = 14, m.kv_lora_rank = 10, m.v_head_dim = 8;
    m.qk_nope_head_dim = 6, m.qk_rope_head_dim = 4;
  }
  if (family == "qwen3_moe")
    m.moe_intermediate_size = 30, m.decoder_sparse_step = 2, m.norm_topk_prob = false;
  return m;
}

TEST(Pipeline, TrainsEveryFamily) {
  if (world().size() != 4) return;
  for (const char* family : {"llama", "gpt2", "qwen3", "olmo2", "gemma3_text", "glm4", "granite",
                             "nemotron", "starcoder2", "exaone4", "mixtral", "qwen3_moe", "apertus",
                             "glm4_moe", "cohere", "gemma2", "deepseek_v3", "gpt_oss"}) {
    SCOPED_TRACE(family);
    const SharedFolder folder;
    auto in = pipeline_inputs(folder.path());
    in.model = four_layers_of(family);
    in.train.steps = 3;
    const auto alone = run_alone(in);
    for (const int stages : {2, 4}) {
      in.mesh.pipeline = stages;
      expect_like_one_rank(run(world(), in), alone);
    }
  }
}

// Experts are exchanged within a stage.
TEST(Pipeline, DividesExpertsWithinAStage) {
  if (world().size() != 4) return;
  const SharedFolder folder;
  auto in = pipeline_inputs(folder.path());
  in.model = four_layers_of("mixtral");
  in.model.num_experts = 4;
  const auto alone = run_alone(in);
  in.mesh = {.pipeline = 2, .expert = 2};
  expect_like_one_rank(run(world(), in), alone);
}

// Stages need the counts of all layers, which they sum while other micro-batches pass. One rank
// counts as many tokens at a time as one pipeline does.
TEST(Pipeline, BalancesExpertsOverAllStages) {
  if (world().size() != 4) return;
  for (const char* family : {"mixtral", "qwen3_moe"}) {  // every second layer is dense
    SCOPED_TRACE(family);
    const SharedFolder folder;
    auto in = pipeline_inputs(folder.path());
    in.model = four_layers_of(family);
    in.model.output_router_logits = true;
    in.model.router_aux_loss_coef = 0.3;
    in.model.num_hidden_layers = 8;
    in.debug.replay_every = 3;
    const auto alone = run_alone(in);
    in.mesh.pipeline = 4;
    for (const int chunks : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} chunks", chunks));
      in.pipeline.chunks = chunks;
      expect_like_one_rank(run(world(), in), alone);
    }
  }
}

// The backward pass ends in one of the stages.
TEST(Pipeline, TrainsSomeLayersOrAdaptersOnly) {
  if (world().size() != 4) return;
  const SharedFolder folder;
  auto in = pipeline_inputs(folder.path());
  in.optimizer.eps = 1e-5;
  in.train.trained.freeze = {"model.embed_tokens", "model.layers.0", "model.layers.1.mlp",
                             "model.layers.2", "*.q_proj"};
  const auto frozen = run_alone(in);
  auto with_adapters = in;
  with_adapters.train.trained = {};
  with_adapters.model.lora = model::Lora{.rank = 3, .alpha = 7};
  const auto adapters = run_alone(with_adapters);
  for (const int stages : {2, 4})
    for (const int chunks : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} stages, {} chunks", stages, chunks));
      in.mesh.pipeline = with_adapters.mesh.pipeline = stages;
      in.pipeline.chunks = with_adapters.pipeline.chunks = chunks;
      expect_like_one_rank(run(world(), in), frozen);
      expect_like_one_rank(run(world(), with_adapters), adapters);
    }
}

TEST(Pipeline, OptimizesByMuonAndChecksItself) {
  if (world().size() != 4) return;
  const SharedFolder folder;
  auto in = pipeline_inputs(folder.path());
  in.optimizer.name = optim::OptimizerName::muon;
  in.debug.replay_every = 2;
  in.debug.contract = true;
  const auto alone = run_alone(in);
  for (const auto& [stages, chunks] : {std::pair(2, 1), {4, 1}, {2, 4}, {4, 2}}) {
    SCOPED_TRACE(fmt::format("{} stages with {} chunks", stages, chunks));
    in.mesh.pipeline = stages;
    in.pipeline.chunks = chunks;
    expect_like_one_rank(run(world(), in), alone);
  }
}

// Each document sees itself only: all stages need to know where it begins.
TEST(Pipeline, SeparatesPackedDocuments) {
  if (world().size() != 4) return;
  const SharedFolder folder;
  auto in = pipeline_inputs(folder.path());
  const auto documents = folder.path() / "documents.jsonl";
  if (world().rank() == 0) {
    std::ofstream out(documents);
    for (int i = 0; i < 400; ++i) out << R"({"text": "lamp )" << i * i % 97 << "\"}\n";
  }
  world().barrier();
  in.data.train = {documents.string()};
  in.data.format = data::Format::jsonl;
  in.data.document_mask = true;
  const auto alone = run_alone(in);
  in.mesh.pipeline = 4;
  in.pipeline.chunks = 2;
  expect_like_one_rank(run(world(), in), alone);
}

/// Values of a run by step: losses, or those of evaluations.
std::map<std::int64_t, double> values_of(const train::Inputs& in, const char* event,
                                         const char* key) {
  std::map<std::int64_t, double> values;
  std::ifstream file(in.run.folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (entry.value("event", "") == event) values[entry.at("step")] = entry.at(key);
  }
  return values;
}

// As after a node was lost.
TEST(Pipeline, GoesOnWithFewerStagesIfRanksAreMissing) {
  if (world().size() != 4) return;
  const SharedFolder folder;
  auto in = pipeline_inputs(folder.path());
  in.train.steps = 6;
  in.schedule.name = optim::ScheduleName::constant;
  in.checkpoint.every_steps = 1;
  run_to_the_end(in);
  const auto losses = values_of(in, "", "loss");
  ASSERT_EQ(losses.size(), 6U);

  in.run.folder += "-in-stages";
  const auto trains_to = [&](std::int64_t steps, const comm::MeshOptions& mesh,
                             const sharding::PipelineOptions& pipeline) {
    in.train.steps = steps;
    in.mesh = mesh;
    in.pipeline = pipeline;
    const auto stages = train::make_setup(world(), in).pipeline.stages;
    run_to_the_end(in);
    return stages;
  };
  EXPECT_EQ(trains_to(2, {.pipeline = 4}, {}), 4);
  EXPECT_EQ(trains_to(4, {.pipeline = 8}, {.layers = {1, 1, 1, 1, 1, 1, 1, 1}}), 4);
  EXPECT_EQ(trains_to(6, {.pipeline = 4, .tensor = 2}, {.chunks = 2}), 2);
  const auto continued = values_of(in, "", "loss");
  ASSERT_EQ(continued.size(), 6U);
  for (const auto& [step, loss] : continued)
    EXPECT_NEAR(loss, losses.at(step), 1e-5 * loss) << "step " << step;
}

TEST(Pipeline, EvaluatesAndResumesOnAnyMesh) {
  if (world().size() != 4) return;
  for (const bool tied : {false, true}) {
    const SharedFolder folder;
    auto in = pipeline_inputs(folder.path());
    in.model.tie_word_embeddings = tied;
    in.train.steps = 8;
    in.schedule.name = optim::ScheduleName::constant;
    in.checkpoint.every_steps = 1;
    in.data.validation = in.data.train;
    in.evaluate.every_steps = 2;
    in.evaluate.sequences = 8;
    run_to_the_end(in);
    const auto losses = values_of(in, "", "loss");
    const auto validated = values_of(in, "validation", "loss");
    ASSERT_EQ(losses.size(), 8U);
    ASSERT_EQ(validated.size(), 4U);
    in.checkpoint.resume = checkpoint_of(in, "02");
    in.train.steps = 4;
    for (const auto& [stages, chunks, next] :
         {std::tuple(2, 1, "04"), {4, 2, "05"}, {2, 2, "06"}, {1, 1, "08"}}) {
      SCOPED_TRACE(fmt::format("{} stages with {} chunks", stages, chunks));
      in.mesh = {.pipeline = stages};
      in.pipeline.chunks = chunks;
      in.train.steps = std::stoi(next);
      in.run.folder = (folder.path() / fmt::format("{}-{}", stages, chunks)).string();
      run_to_the_end(in);
      for (const auto& [step, loss] : values_of(in, "", "loss"))
        EXPECT_NEAR(loss, losses.at(step), 1e-5 * loss) << "step " << step;
      for (const auto& [step, loss] : values_of(in, "validation", "loss")) {
        const auto known = validated.find(step);  // the last step of each run is evaluated too
        EXPECT_NEAR(loss, known == validated.end() ? loss : known->second, 1e-5 * loss)
            << "evaluation at step " << step;
      }
      in.checkpoint.resume = checkpoint_of(in, next);
    }
  }
}

}  // namespace
}  // namespace llamesh::test
