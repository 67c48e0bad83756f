#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/models/hf_export.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "checkpoint/models/stored_model.hpp"
#include "model/description/config_json.hpp"
#include "model/description/family.hpp"
#include "runs/whole_run.hpp"

// Every family is trained on every kind of mesh, saved, exported and loaded.

namespace llamesh::test {
namespace {

using model::ActivationCheckpointing;

/// Returns a small model of the family that has all that the family may have.
model::ModelConfig small_model(const std::string& family) {
  model::ModelConfig m = small_inputs(TemporaryFolder().path()).model;
  m.family = family == "qwen3_moe_dense" ? "qwen3_moe" : family;
  m.vocab_size = 257;
  if (family == "gpt2") {
    m.num_key_value_heads = 6;
    m.max_position_embeddings = 29;
    m.tie_word_embeddings = true;
    return m;
  }
  m.num_key_value_heads = family == "olmo2" || family == "qwen3" ? 1 : 2;  // 1: ranks share it
  m.head_dim = 10;
  if (family == "mixtral" || m.family == "qwen3_moe") m.num_experts = 5, m.num_experts_per_tok = 2;
  if (family == "qwen3_moe_dense")
    m.num_hidden_layers = 6, m.decoder_sparse_step = 2, m.mlp_only_layers = {5};
  if (m.num_experts > 0) m.router_z_loss_coef = 0.01;
  if (m.family == "qwen3_moe") m.moe_intermediate_size = 30, m.norm_topk_prob = false;
  if (family == "mistral" || family == "mixtral") m.sliding_window = 7;
  if (family == "qwen2") m.sliding_window = 9, m.max_window_layers = 1;
  if (family == "olmo2") m.attention_bias = true;
  if (family == "gemma2") {
    m.sliding_window = 7, m.layer_types = {"sliding_attention", "full_attention"};
    m.attn_logit_softcapping = 0.5, m.final_logit_softcapping = 3;
  }
  if (family == "deepseek_v3") {
    m.num_key_value_heads = m.num_attention_heads, m.head_dim = 0;
    m.q_lora_rank = 14, m.kv_lora_rank = 10, m.v_head_dim = 8;
    m.qk_nope_head_dim = 6, m.qk_rope_head_dim = 4;
    m.num_experts = 5, m.num_experts_per_tok = 2, m.first_k_dense_replace = 1;
    m.moe_intermediate_size = m.shared_expert_intermediate_size = 30;
  }
  if (family == "gpt_oss") {
    m.attention_bias = true, m.num_experts = 5, m.num_experts_per_tok = 2;
    m.router_z_loss_coef = 0.01;
    m.sliding_window = 7, m.layer_types = {"sliding_attention", "full_attention"};
  }
  if (family == "qwen3")
    m.rope_scaling = model::RopeScaling{
        .rope_type = model::RopeType::yarn, .factor = 4, .original_max_position_embeddings = 16};
  return m;
}

/// Writes short documents, several to a sequence.
std::string packed_documents(const std::filesystem::path& folder) {
  const auto path = folder / "documents.jsonl";
  if (world().rank() == 0) {
    std::ofstream out(path);
    for (int i = 0; i < 400; ++i)
      out << R"({"text": "lamp )" << i * i % 97 << " of mesh " << i % 7 << "\"}\n";
  }
  world().barrier();
  return path.string();
}

class Families : public testing::TestWithParam<const char*> {
 protected:
  train::Inputs inputs() const {
    auto in = inputs_in(folder_.path());
    in.model = small_model(GetParam());
    return in;
  }
  const std::filesystem::path& folder() const { return folder_.path(); }
  static int largest_tensor() { return world().size() % 2 == 0 ? 2 : 1; }

 private:
  const SharedFolder folder_;
};

void expect_near(const Outcome& outcome, const Outcome& expected) {
  ASSERT_EQ(outcome.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < outcome.losses.size(); ++i) {
    EXPECT_NEAR(outcome.losses[i], expected.losses[i], 2e-5) << "step " << i + 1;
    EXPECT_NEAR(outcome.norms[i], expected.norms[i], 2e-4 * expected.norms[i]) << "step " << i + 1;
  }
}

TEST_P(Families, TrainAlikeOnEveryMesh) {
  auto in = inputs();
  in.train.steps = 6;
  const auto alone = run_alone(in);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  for (int tensor = 1; tensor <= largest_tensor(); ++tensor) {
    in.mesh.tensor = tensor;
    for (const auto residual :
         {sharding::ResidualLayout::sequence, sharding::ResidualLayout::whole})
      for (const auto strategy :
           {sharding::Strategy::full_shard, sharding::Strategy::hybrid_shard_zero2}) {
        if (tensor == 1 && residual == sharding::ResidualLayout::whole) continue;
        SCOPED_TRACE(fmt::format("tensor {}, residual {}, strategy {}", tensor,
                                 static_cast<int>(residual), sharding::name_of(strategy)));
        in.tensor.residual = residual;
        in.sharding.strategy = strategy;
        expect_near(run(world(), in), alone);
      }
  }
}

TEST_P(Families, TrainAlikeWithEveryMemoryOption) {
  auto in = inputs();
  in.train.steps = 6;
  in.data.train = {packed_documents(folder())};
  in.data.format = data::Format::jsonl;
  in.data.document_mask = true;
  const auto alone = run_alone(in);
  in.mesh.tensor = largest_tensor();
  for (const auto checkpointing :
       {ActivationCheckpointing::selective, ActivationCheckpointing::full}) {
    SCOPED_TRACE(static_cast<int>(checkpointing));
    in.memory.activation_checkpointing = checkpointing;
    expect_near(run(world(), in), alone);
    in.memory.activation_offload = true;
    expect_near(run(world(), in), alone);
    in.memory.activation_offload = false;
  }
  in.sharding.wrap.wrap = sharding::Wrap::size;
  in.sharding.wrap.min_numel = 1000;
  expect_near(run(world(), in), alone);
}

TEST_P(Families, AreSavedExportedAndLoaded) {
  auto in = inputs();
  in.model = in.model.resolved();
  run_to_the_end(in);
  const auto saved = checkpoint_of(in, "12");
  const auto exported = folder() / "exported";
  checkpoint::ExportOptions options;
  options.max_shard_bytes = 20'000;
  checkpoint::export_hf(saved, exported, options, world());
  const auto config = model::read_config_json(exported);
  EXPECT_EQ(model::to_config_json(config), model::to_config_json(in.model));
  const auto table = parameter_table(config);
  const auto open = [&](const std::filesystem::path& path) {
    return stored_weights(*checkpoint::open_model(checkpoint::locate(path), config, table), table);
  };
  EXPECT_EQ(open(exported), open(saved));
}

INSTANTIATE_TEST_SUITE_P(Each, Families,
                         testing::Values("llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt2",
                                         "mixtral", "qwen3_moe", "qwen3_moe_dense", "gemma2",
                                         "cohere", "deepseek_v3", "gpt_oss"),
                         [](const auto& one) { return std::string(one.param); });

/// Returns rank 0's error; the others are told that a rank has failed.
std::string error_of_run(const train::Inputs& in) {
  std::string message = "no error";
  try {
    run(world(), in);
  } catch (const Error& error) {
    message = error.what();
  }
  return world().broadcast(message);
}

TEST(Dropout, IsRefusedByName) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.model = small_model("gpt2");
  in.model.dropout = 0.1;
  EXPECT_NE(error_of_run(in).find("model.dropout is 0.1"), std::string::npos) << error_of_run(in);
}

TEST(LearnedPositions, EndASequence) {
  const SharedFolder folder;
  auto in = inputs_in(folder.path());
  in.model = small_model("gpt2");
  in.data.sequence_length = 30;
  EXPECT_NE(error_of_run(in).find("model.max_position_embeddings, 29"), std::string::npos)
      << error_of_run(in);
}

}  // namespace
}  // namespace llamesh::test
