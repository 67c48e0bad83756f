#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/models/stored_model.hpp"
#include "model/decoder.hpp"
#include "model/inference_weights.hpp"
#include "runs/whole_run.hpp"
#include "tokenizer/tokenizer.hpp"
#include "train/records/run_metrics.hpp"

// What runs record of their model: texts behind prompts, and norms by layer.

namespace llamesh::test {
namespace {

using sharding::Strategy;

train::Inputs inputs_with_prompts(const std::filesystem::path& folder) {
  auto in = inputs_in(folder);
  in.model.vocab_size = 264;  // more than the tokenizer's
  in.model.num_attention_heads = 6;
  in.model.num_key_value_heads = 2;
  in.data.validation = in.data.train;
  in.evaluate.every_steps = 6;
  in.evaluate.sequences = 4;
  in.evaluate.prompts = {"the 5", "mesh"};
  in.evaluate.max_tokens = 12;
  in.optimizer.lr = 2e-2;
  return in;
}

/// Makes it a model whose keys and values come from latents.
void use_latents(model::ModelConfig& model) {
  model.family = "deepseek_v3";
  model.num_key_value_heads = model.num_attention_heads;
  model.head_dim = 0;
  model.num_experts = 4;
  model.num_experts_per_tok = 2;
  model.moe_intermediate_size = model.shared_expert_intermediate_size = 20;
  model.first_k_dense_replace = 1;
  model.q_lora_rank = 16;
  model.kv_lora_rank = 24;
  model.qk_nope_head_dim = 8;
  model.qk_rope_head_dim = 4;
  model.v_head_dim = 8;
}

/// Returns what a decoder of its own makes of the prompt with the run's final weights.
std::string continued(const train::Inputs& in, const std::string& prompt) {
  const auto config = in.model.resolved();
  const auto table = model::parameter_table(config);
  const auto stored =
      checkpoint::open_model(checkpoint::locate(checkpoint_of(in, "12")), config, table);
  model::InferenceWeights weights(table, DType::f32);
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto& shape = table.parameters[i].shape;
    const model::ParameterId id{static_cast<int>(i)};
    stored->read(id, {Box::whole(shape), 0, numel(shape)},
                 {weights.values(id).as<float>(), static_cast<std::size_t>(numel(shape))});
  }
  const auto tokenizer = tokenizer::open_tokenizer("byte");
  auto ids = tokenizer->encode(prompt);
  model::Decoder decoder(config, table, weights, 64, {DType::f32, in.precision.linear});
  auto logits = decoder.feed(ids);
  tokenizer::TextStream stream(*tokenizer);
  for (const auto id : ids) stream.push(id);
  std::string text;
  for (int i = 0; i < in.evaluate.max_tokens; ++i) {
    const auto known = logits.first(static_cast<std::size_t>(tokenizer->vocab_size()));
    const auto next = static_cast<std::int32_t>(std::ranges::max_element(known) - known.begin());
    if (next == 0) break;  // ends a document
    text += stream.push(next);
    logits = decoder.feed({&next, 1});
  }
  return text + stream.finish();
}

TEST(Samples, AreWhatTheWeightsWriteOnEveryMesh) {
  const int ranks = world().size();
  struct Case {
    Strategy strategy;
    int tensor = 1, context = 1;
    sharding::Offload offload = sharding::Offload::none;
    bool lora = false;
    bool fp8 = false, latent = false;
  };
  for (const auto& c : {Case{Strategy::full_shard}, Case{Strategy::no_shard},
                        Case{Strategy::hybrid_shard, 1, 1, sharding::Offload::optimizer},
                        Case{Strategy::full_shard, 2}, Case{Strategy::full_shard, 1, 2},
                        Case{.strategy = Strategy::full_shard, .lora = true},
                        Case{.strategy = Strategy::full_shard, .fp8 = true},
                        Case{.strategy = Strategy::full_shard, .fp8 = true, .latent = true}}) {
    if (ranks % (c.tensor * c.context) != 0) continue;
    SCOPED_TRACE(fmt::format("{}, tensor {}, context {}, lora {}, fp8 {}, latent {}",
                             sharding::name_of(c.strategy), c.tensor, c.context, c.lora, c.fp8,
                             c.latent));
    const SharedFolder folder;
    auto in = inputs_with_prompts(folder.path());
    in.sharding.strategy = c.strategy;
    in.sharding.offload = c.offload;
    in.mesh.tensor = c.tensor;
    in.mesh.context = c.context;
    if (c.lora) in.model.lora = model::Lora{.rank = 4, .alpha = 64};
    if (c.fp8) in.precision.linear = model::LinearPrecision::fp8;
    if (c.fp8 && ranks > 1) {
      in.sharding.gather = sharding::GatherDType::fp8;
      in.sharding.gather_within_node = true;
    }
    if (c.latent) use_latents(in.model);
    run_to_the_end(in);
    const auto with = train::read_metrics(in.run.folder + "/metrics.jsonl");
    ASSERT_EQ(with.samples.size(), 2U);  // after steps 6 and 12
    ASSERT_EQ(with.samples.at(12).size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(with.samples.at(12)[i].prompt, in.evaluate.prompts[i]);
      EXPECT_EQ(with.samples.at(12)[i].text, continued(in, in.evaluate.prompts[i]));
    }
    if (!c.lora) {  // adapters beside random weights learn little
      EXPECT_GT(with.samples.at(12)[0].text.size(), 3U);
    }

    in.evaluate.prompts.clear();
    in.run.folder += "-without";
    run_to_the_end(in);
    const auto without = train::read_metrics(in.run.folder + "/metrics.jsonl");
    EXPECT_TRUE(without.samples.empty());
    for (const auto& [step, record] : without.steps) {
      EXPECT_EQ(with.steps.at(step).loss, record.loss) << step;
      EXPECT_EQ(with.steps.at(step).grad_norm, record.grad_norm) << step;
    }
    EXPECT_EQ(with.validation, without.validation);
  }
}

TEST(LayerNorms, AddUpToTheWholeAndAreAlikeOnEveryMesh) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.log.layers_every = 3;
  in.model.num_key_value_heads = 2;
  const auto records = [](const comm::Communicator& ranks, const train::Inputs& inputs) {
    const auto setup = plan::make_planned_setup(ranks, inputs);
    comm::DeviceMesh mesh(ranks, setup.topology, setup.mesh);
    train::Trainer trainer(ranks, setup, mesh);
    trainer.start();
    std::vector<train::StepRecord> all;
    for (int step = 0; step < 6; ++step) all.push_back(trainer.train_step());
    return all;
  };
  const auto alone_in = [&] {
    auto alone = in;
    alone.run.folder += "-alone";
    alone.sharding.strategy = Strategy::no_shard;
    return alone;
  }();
  const auto alone_ranks = world().split(world().rank(), 0);
  const auto alone = records(alone_ranks, alone_in);
  ASSERT_TRUE(alone[0].layer_grad_norm.empty());
  ASSERT_EQ(alone[5].layer_grad_norm.size(), 6U);  // three layers, embedding, last norm, head
  ASSERT_TRUE(alone[5].layer_grad_norm.contains("model.layers.2"));
  ASSERT_TRUE(alone[5].layer_weight_norm.contains("lm_head.weight"));
  for (int tensor = 1; tensor <= (world().size() % 2 == 0 ? 2 : 1); ++tensor)
    for (const auto strategy : {Strategy::full_shard, Strategy::hybrid_shard}) {
      SCOPED_TRACE(fmt::format("{}, tensor {}", sharding::name_of(strategy), tensor));
      in.mesh.tensor = tensor;
      in.sharding.strategy = strategy;
      const auto seen = records(world(), in);
      for (const int step : {2, 5}) {
        const auto& record = seen[static_cast<std::size_t>(step)];
        double squares = 0;
        for (const auto& [layer, norm] : record.layer_grad_norm) {
          squares += norm * norm;
          EXPECT_NEAR(norm, alone[static_cast<std::size_t>(step)].layer_grad_norm.at(layer),
                      1e-3 * norm)
              << layer;
        }
        EXPECT_NEAR(std::sqrt(squares), record.grad_norm, 1e-6 * record.grad_norm);
        for (const auto& [layer, norm] : record.layer_weight_norm)
          EXPECT_NEAR(norm, alone[static_cast<std::size_t>(step)].layer_weight_norm.at(layer),
                      1e-4 * norm)
              << layer;
      }
    }
}

TEST(LayerNorms, AreThoseOfTheWeights) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.log.layers_every = 1;
  in.train.trained.freeze = {"model.embed_tokens", "model.layers.0"};
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  train::Trainer trainer(world(), setup, mesh);
  trainer.start();
  const auto record = trainer.train_step();
  // Norm weights begin as ones; what is frozen has no norm here.
  EXPECT_EQ(record.layer_weight_norm.at("model.norm.weight"), 6);  // sqrt(36)
  EXPECT_FALSE(record.layer_weight_norm.contains("model.layers.0"));
  EXPECT_FALSE(record.layer_grad_norm.contains("model.embed_tokens.weight"));
}

TEST(RefusedSamples, AreThoseThatTheRunCannotWrite) {
  const SharedFolder folder;
  const auto error_of = [&](const auto& change) {
    auto in = inputs_with_prompts(folder.path());
    change(in);
    return test::error_of([&] { plan::make_planned_setup(world(), in); });
  };
  const auto contains = [](const std::string& error, const char* text) {
    EXPECT_TRUE(error.empty() ? world().rank() != 0 : error.find(text) != error.npos) << error;
  };
  if (world().size() > 1) return;  // the same on every rank
  contains(error_of([](auto& in) { in.evaluate.every_steps = 0; }), "set evaluate.every_steps");
  contains(error_of([](auto& in) {
             in.data.format = data::Format::random;
             in.data.train = {};
             in.data.validation = {};
           }),
           "name it in data.tokenizer");
  auto in = inputs_with_prompts(folder.path());
  in.model.family = "gpt2";
  in.model.num_key_value_heads = 6;
  in.model.tie_word_embeddings = true;
  in.model.max_position_embeddings = 30;
  in.evaluate.max_tokens = 40;
  const auto setup = plan::make_planned_setup(world(), in);
  comm::DeviceMesh mesh(world(), setup.topology, setup.mesh);
  contains(test::error_of([&] { const train::Trainer trainer(world(), setup, mesh); }),
           "evaluate.max_tokens");
}

}  // namespace
}  // namespace llamesh::test
