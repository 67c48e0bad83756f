#include "model/model_config.hpp"

#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/error.hpp"
#include "model/family.hpp"
#include "model/parameters.hpp"

namespace llamesh::model {
namespace {

// Far above any model, yet small enough that products with layers and bytes per element cannot
// overflow.
constexpr std::int64_t widest = std::int64_t{1} << 20U;
constexpr std::int64_t longest = std::int64_t{1} << 24U;
constexpr std::int64_t max_layers = 10'000;

void check_lora(const Lora& lora) {
  validate(lora.rank >= 1 && lora.rank <= widest, "model.lora.rank is {}; allowed: 1 to {}",
           lora.rank, widest);
  validate(lora.alpha > 0, "model.lora.alpha is {}; it must be positive", lora.alpha);
  validate(lora.dropout == 0, "model.lora.dropout is {}, and llamesh has no dropout; set it to 0",
           lora.dropout);
}

/// A key that not every family has.
struct OptionalKey {
  const char* name;
  bool (*is_set)(const ModelConfig& config);
};

template <auto member>
constexpr OptionalKey key(const char* name) {
  return {name, [](const ModelConfig& c) { return c.*member != ModelConfig().*member; }};
}

constexpr OptionalKey optional_keys[] = {
    key<&ModelConfig::max_position_embeddings>("max_position_embeddings"),
    key<&ModelConfig::rms_norm_eps>("rms_norm_eps"),
    key<&ModelConfig::layer_norm_epsilon>("layer_norm_epsilon"),
    key<&ModelConfig::rope_theta>("rope_theta"),
    key<&ModelConfig::rope_scaling>("rope_scaling"),
    key<&ModelConfig::num_experts>("num_experts"),
    key<&ModelConfig::num_experts_per_tok>("num_experts_per_tok"),
    key<&ModelConfig::moe_intermediate_size>("moe_intermediate_size"),
    key<&ModelConfig::decoder_sparse_step>("decoder_sparse_step"),
    key<&ModelConfig::mlp_only_layers>("mlp_only_layers"),
    key<&ModelConfig::norm_topk_prob>("norm_topk_prob"),
    key<&ModelConfig::output_router_logits>("output_router_logits"),
    key<&ModelConfig::router_aux_loss_coef>("router_aux_loss_coef"),
    key<&ModelConfig::router_z_loss_coef>("router_z_loss_coef"),
    key<&ModelConfig::sliding_window>("sliding_window"),
    key<&ModelConfig::max_window_layers>("max_window_layers"),
    key<&ModelConfig::attention_bias>("attention_bias"),
    key<&ModelConfig::mlp_bias>("mlp_bias"),
    key<&ModelConfig::dropout>("dropout"),
};

/// Refuses the keys that other families have.
void refuse_others_keys(const ModelConfig& c, const Family& family) {
  for (const auto& key : optional_keys)
    validate(family.has_key(key.name) || !key.is_set(c),
             "model.{} is set, but the family {} has none", key.name, c.family);
}

/// Description of the keys that differ between two configs.
class ConfigDifference {
 public:
  template <class T>
  void add(const char* key, const T& then, const T& now) {
    if (then == now) return;
    text_ += fmt::format("{}model.{} is {} (it was {})", text_.empty() ? "" : ", ", key, now, then);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Adds keys that only decide which parameters there are, and of which shapes.
void add_shape_keys(ConfigDifference& keys, const ModelConfig& then, const ModelConfig& now) {
  keys.add("hidden_size", then.hidden_size, now.hidden_size);
  keys.add("intermediate_size", then.intermediate_size, now.intermediate_size);
  keys.add("num_hidden_layers", then.num_hidden_layers, now.num_hidden_layers);
  keys.add("vocab_size", then.vocab_size, now.vocab_size);
  keys.add("max_position_embeddings", then.max_position_embeddings, now.max_position_embeddings);
  keys.add("num_experts", then.num_experts, now.num_experts);
  if (then.num_experts > 0 && now.num_experts > 0)
    keys.add("moe_intermediate_size", then.expert_size(), now.expert_size());
  keys.add("decoder_sparse_step", then.decoder_sparse_step, now.decoder_sparse_step);
  keys.add("mlp_only_layers", then.mlp_only_layers, now.mlp_only_layers);
  keys.add("tie_word_embeddings", then.tie_word_embeddings, now.tie_word_embeddings);
  keys.add("attention_bias", then.attention_bias, now.attention_bias);
  keys.add("mlp_bias", then.mlp_bias, now.mlp_bias);
  const auto describe = [](const std::optional<Lora>& lora) { return lora ? "set" : "null"; };
  keys.add("lora", std::string(describe(then.lora)), std::string(describe(now.lora)));
  if (!then.lora || !now.lora) return;
  keys.add("lora.rank", then.lora->rank, now.lora->rank);
  keys.add("lora.targets", then.lora->targets, now.lora->targets);
}

}  // namespace

double Lora::scaling() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

ModelConfig ModelConfig::resolved() const {
  ModelConfig c = *this;
  const auto& known = family_named(family);
  const auto in_range = [](const char* key, std::int64_t value, std::int64_t max) {
    validate(value >= 1 && value <= max, "model.{} is {}; allowed: 1 to {}", key, value, max);
  };
  in_range("hidden_size", hidden_size, widest);
  in_range("intermediate_size", intermediate_size, widest);
  in_range("num_hidden_layers", num_hidden_layers, max_layers);
  in_range("num_attention_heads", num_attention_heads, widest);
  in_range("vocab_size", vocab_size, std::numeric_limits<std::int32_t>::max());
  if (c.num_key_value_heads == 0) c.num_key_value_heads = num_attention_heads;
  in_range("num_key_value_heads", c.num_key_value_heads, widest);
  validate(num_attention_heads % c.num_key_value_heads == 0,
           "model.num_attention_heads {} is not a multiple of num_key_value_heads {}",
           num_attention_heads, c.num_key_value_heads);
  if (c.head_dim == 0) {
    validate(hidden_size % num_attention_heads == 0,
             "model.hidden_size {} is not a multiple of num_attention_heads {}; set head_dim",
             hidden_size, num_attention_heads);
    c.head_dim = hidden_size / num_attention_heads;
  }
  in_range("head_dim", c.head_dim, widest / num_attention_heads);
  const auto optional_in_range = [](const char* key, std::int64_t value, std::int64_t max) {
    validate(value >= 0 && value <= max, "model.{} is {}; allowed: 0 to {}", key, value, max);
  };
  optional_in_range("max_position_embeddings", max_position_embeddings, longest);
  optional_in_range("num_experts", num_experts, longest);
  optional_in_range("num_experts_per_tok", num_experts_per_tok, num_experts);
  optional_in_range("moe_intermediate_size", moe_intermediate_size, widest);
  in_range("decoder_sparse_step", decoder_sparse_step, max_layers);
  for (const auto layer : mlp_only_layers)
    validate(layer >= 0 && layer < num_hidden_layers,
             "model.mlp_only_layers has layer {}; the model has layers 0 to {}", layer,
             num_hidden_layers - 1);
  optional_in_range("sliding_window", sliding_window, longest);
  optional_in_range("max_window_layers", max_window_layers, max_layers);
  validate(rms_norm_eps > 0, "model.rms_norm_eps is {}; it must be positive", rms_norm_eps);
  validate(initializer_range > 0, "model.initializer_range is {}; it must be positive",
           initializer_range);
  if (c.rope_scaling && c.rope_scaling->rope_type == RopeType::llama3) {
    auto& s = *c.rope_scaling;
    if (s.factor == 0) s.factor = 8;
    if (s.original_max_position_embeddings == 0) s.original_max_position_embeddings = 8192;
  }
  refuse_others_keys(c, known);
  known.check(c);
  if (c.lora) check_lora(*c.lora);
  return c;
}

bool have_same_parameters(const ModelConfig& a, const ModelConfig& b) {
  return std::ranges::equal(parameter_table(a).parameters, parameter_table(b).parameters,
                            [](const Parameter& x, const Parameter& y) {
                              return x.name == y.name && x.shape == y.shape;
                            });
}

std::string difference(const ModelConfig& then, const ModelConfig& now) {
  ConfigDifference keys;
  keys.add("family", then.family, now.family);
  keys.add("num_attention_heads", then.num_attention_heads, now.num_attention_heads);
  keys.add("num_key_value_heads", then.num_key_value_heads, now.num_key_value_heads);
  keys.add("head_dim", then.head_dim, now.head_dim);
  keys.add("num_experts_per_tok", then.num_experts_per_tok, now.num_experts_per_tok);
  keys.add("norm_topk_prob", then.norm_topk_prob, now.norm_topk_prob);
  if (then.lora && now.lora) {
    keys.add("lora.alpha", then.lora->alpha, now.lora->alpha);
    keys.add("lora.rslora", then.lora->rslora, now.lora->rslora);
  }
  if (!have_same_parameters(then, now)) add_shape_keys(keys, then, now);
  return keys.text();
}

void check_positions(const ModelConfig& config, std::int64_t sequence, std::string_view advice) {
  validate(
      sequence <= config.within_positions(sequence),
      "a sequence of {} tokens needs more positions than model.max_position_embeddings, {}; {}",
      sequence, config.max_position_embeddings, advice);
}

}  // namespace llamesh::model
