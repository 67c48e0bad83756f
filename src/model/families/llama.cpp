#include <fmt/format.h>

#include "core/error.hpp"
#include "core/text.hpp"
#include "model/family.hpp"
#include "model/table_builder.hpp"
#include "model/transformer_block.hpp"

namespace llamesh::model {
namespace {

void refuse_what_is_not_computed(const ConfigKeys& keys) {
  const auto activation = keys.text("hidden_act");
  validate(activation.empty() || activation == "silu",
           "{}: hidden_act is '{}'; llamesh computes silu", keys.name(), excerpt(activation));
  const auto* dropout = keys.find("attention_dropout");
  validate(dropout == nullptr || *dropout == 0, "{}: attention_dropout is {}; llamesh has none",
           keys.name(), keys.shown("attention_dropout"));
}

/// Reads the RoPE parameters: rope_parameters in transformers 5, or rope_scaling in older versions.
void read_rope(const ConfigKeys& keys, ModelConfig& c) {
  c.rope_theta = keys.number("rope_theta", c.rope_theta);
  const char* const key = keys.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!keys.has(key)) return;
  const auto rope = keys.object(key);
  c.rope_theta = rope.number("rope_theta", c.rope_theta);
  const auto type = rope.text(rope.has("rope_type") ? "rope_type" : "type");
  if (type == "default") return;
  validate(type == "llama3", "{}: rope_type is '{}'; llamesh computes default and llama3",
           rope.name(), excerpt(type));
  c.rope_scaling =
      RopeScaling{rope.number("factor"), rope.number("low_freq_factor"),
                  rope.number("high_freq_factor"), rope.size("original_max_position_embeddings")};
}

void read_config(const ConfigKeys& keys, ModelConfig& c) {
  refuse_what_is_not_computed(keys);
  c.hidden_size = keys.size("hidden_size");
  c.intermediate_size = keys.size("intermediate_size");
  c.num_hidden_layers = keys.size("num_hidden_layers");
  c.num_attention_heads = keys.size("num_attention_heads");
  if (keys.has("num_key_value_heads")) c.num_key_value_heads = keys.size("num_key_value_heads");
  if (keys.has("head_dim")) c.head_dim = keys.size("head_dim");
  c.vocab_size = keys.size("vocab_size");
  c.rms_norm_eps = keys.number("rms_norm_eps", 1e-6);  // transformers' default in ModelConfig
  c.initializer_range = keys.number("initializer_range", 0.02);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings");
  c.attention_bias = keys.flag("attention_bias");
  c.mlp_bias = keys.flag("mlp_bias");
  read_rope(keys, c);
}

void write_config(const ModelConfig& c, nlohmann::ordered_json& json) {
  json.update({{"hidden_act", "silu"},
               {"hidden_size", c.hidden_size},
               {"intermediate_size", c.intermediate_size},
               {"num_hidden_layers", c.num_hidden_layers},
               {"num_attention_heads", c.num_attention_heads},
               {"num_key_value_heads", c.num_key_value_heads},
               {"head_dim", c.head_dim},
               {"vocab_size", c.vocab_size},
               {"rms_norm_eps", c.rms_norm_eps},
               {"rope_theta", c.rope_theta},
               {"tie_word_embeddings", c.tie_word_embeddings},
               {"initializer_range", c.initializer_range},
               {"attention_bias", c.attention_bias},
               {"mlp_bias", c.mlp_bias}});
  if (const auto& rope = c.rope_scaling)
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", rope->factor},
        {"low_freq_factor", rope->low_freq_factor},
        {"high_freq_factor", rope->high_freq_factor},
        {"original_max_position_embeddings", rope->original_max_position_embeddings}};
}

void add_attention(TableBuilder& add, ModuleId layer, const ModelConfig& c) {
  const Blocks heads{"num_attention_heads", c.num_attention_heads};
  const Blocks kv_heads{"num_key_value_heads", c.num_key_value_heads, /*may_be_shared=*/true};
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  const auto self_attn = add.child(layer, "self_attn");
  const auto q_proj = add.linear(self_attn, "q_proj", {q, c.hidden_size}, Role::column, heads);
  const auto k_proj = add.linear(self_attn, "k_proj", {kv, c.hidden_size}, Role::column, kv_heads);
  const auto v_proj = add.linear(self_attn, "v_proj", {kv, c.hidden_size}, Role::column, kv_heads);
  const auto o_proj = add.linear(self_attn, "o_proj", {c.hidden_size, q}, Role::row, heads);
  if (c.attention_bias)
    for (const auto& layer_of_bias : {q_proj, k_proj, v_proj, o_proj}) add.bias(layer_of_bias);
}

void add_mlp(TableBuilder& add, ModuleId layer, const ModelConfig& c) {
  const Blocks features{"intermediate_size", c.intermediate_size};
  const Shape in{c.intermediate_size, c.hidden_size};
  const auto mlp = add.child(layer, "mlp");
  const auto gate_proj = add.linear(mlp, "gate_proj", in, Role::column, features);
  const auto up_proj = add.linear(mlp, "up_proj", in, Role::column, features);
  const auto down_proj =
      add.linear(mlp, "down_proj", {c.hidden_size, c.intermediate_size}, Role::row, features);
  if (c.mlp_bias)
    for (const auto& layer_of_bias : {gate_proj, up_proj, down_proj}) add.bias(layer_of_bias);
}

ParameterTable make_table(const ModelConfig& c) {
  const Blocks vocabulary{"vocab_size", c.vocab_size};
  const Shape vocabulary_shape{c.vocab_size, c.hidden_size};
  TableBuilder add;
  const auto model = add.child(add.root(), "model");
  const auto embed_tokens =
      add.linear(model, "embed_tokens", vocabulary_shape, Role::vocab, vocabulary);
  const auto layers = add.child(model, "layers");
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const auto layer = add.layer(layers, i);
    add_attention(add, layer, c);
    add_mlp(add, layer, c);
    add.norm(layer, "input_layernorm", c.hidden_size);
    add.norm(layer, "post_attention_layernorm", c.hidden_size);
  }
  const auto norm = add.norm(model, "norm", c.hidden_size);
  const auto lm_head = c.tie_word_embeddings ? add.tied(add.root(), "lm_head", embed_tokens)
                                             : add.linear(add.root(), "lm_head", vocabulary_shape,
                                                          Role::vocab, vocabulary);
  return add.table(embed_tokens, norm, lm_head);
}

}  // namespace

const Family llama_family{.name = "llama",
                          .architecture = "LlamaForCausalLM",
                          .read_config = read_config,
                          .write_config = write_config,
                          .make_table = make_table,
                          .make_block = make_transformer_block};

}  // namespace llamesh::model
