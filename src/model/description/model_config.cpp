#include "model/description/model_config.hpp"

#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <type_traits>

#include "core/error.hpp"
#include "core/text.hpp"
#include "model/description/family.hpp"
#include "model/description/parameters.hpp"

namespace llamesh::model {
namespace {

void check_lora(const Lora& lora) {
  validate(lora.rank >= 1 && lora.rank <= widest, "model.lora.rank is {}; allowed: 1 to {}",
           lora.rank, widest);
  validate(lora.alpha > 0, "model.lora.alpha is {}; it must be positive", lora.alpha);
  validate(lora.dropout == 0, "model.lora.dropout is {}, and llamesh has no dropout; set it to 0",
           lora.dropout);
}

/// Refuses keys that the family does not take.
void refuse_others_keys(const ModelConfig& c, const Family& family) {
  static const ModelConfig defaults;
  for_each_model_key([&](const auto& key) {
    validate(family.keys.contains(key.name) || c.*key.member == defaults.*key.member,
             "model.{} is set, but the family {} has none", key.name, c.family);
  });
}

void check_ranges(const ModelConfig& c) {
  for_each_model_key([&]<class T>(const ModelKey<T>& key) {
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
      validate(key.range.contains(static_cast<double>(c.*key.member)),
               "model.{} is {}; allowed: {}", key.name, c.*key.member, key.range.describe());
  });
}

/// Repeats a list of values per layer until each layer has one.
template <class T>
void repeat_for_layers(const char* key, std::vector<T>& values, std::int64_t layers) {
  const auto count = static_cast<std::size_t>(layers), given = values.size();
  validate(given <= count, "model.{} has {} values, but the model has {} layers; remove {}", key,
           given, count, given - count);
  for (auto i = given; i < count; ++i) values.push_back(values[i - given]);
}

void resolve_layer_types(ModelConfig& c) {
  if (c.layer_types.empty())
    c.layer_types.emplace_back(c.sliding_window > 0 ? sliding_attention : full_attention);
  for (const auto& type : c.layer_types)
    validate(type == sliding_attention || type == full_attention,
             "model.layer_types has '{}'; known: {}, {}", excerpt(type), sliding_attention,
             full_attention);
  validate(c.sliding_window > 0 ||
               std::ranges::find(c.layer_types, sliding_attention) == c.layer_types.end(),
           "model.layer_types has {}, but there is no window; set model.sliding_window",
           sliding_attention);
  repeat_for_layers("layer_types", c.layer_types, c.num_hidden_layers);
}

void resolve_no_rope_layers(ModelConfig& c) {
  if (c.no_rope_layers.empty()) c.no_rope_layers.push_back(1);
  for (const auto rotates : c.no_rope_layers)
    validate(rotates == 0 || rotates == 1,
             "model.no_rope_layers has {}; write 1 for a layer with RoPE, 0 for one without",
             rotates);
  repeat_for_layers("no_rope_layers", c.no_rope_layers, c.num_hidden_layers);
}

/// Description of the keys that differ between two configs.
class ConfigDifference {
 public:
  template <class T>
  void add(std::string_view key, const T& then, const T& now) {
    if (then == now) return;
    text_ += fmt::format("{}model.{} is {} (it was {})", text_.empty() ? "" : ", ", key, now, then);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_keys(ConfigDifference& keys, Change change, const ModelConfig& then,
              const ModelConfig& now) {
  for_each_model_key([&]<class T>(const ModelKey<T>& key) {
    if constexpr (fmt::is_formattable<T>::value)
      if (key.change == change) keys.add(key.name, then.*key.member, now.*key.member);
  });
}

void add_adapters(ConfigDifference& keys, const ModelConfig& then, const ModelConfig& now) {
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
  check_ranges(c);
  if (c.num_key_value_heads == 0) c.num_key_value_heads = num_attention_heads;
  validate(num_attention_heads % c.num_key_value_heads == 0,
           "model.num_attention_heads {} is not a multiple of num_key_value_heads {}",
           num_attention_heads, c.num_key_value_heads);
  if (c.head_dim == 0 && has_latent_attention()) c.head_dim = qk_nope_head_dim + qk_rope_head_dim;
  if (c.head_dim == 0) {
    validate(hidden_size % num_attention_heads == 0,
             "model.hidden_size {} is not a multiple of num_attention_heads {}; set head_dim",
             hidden_size, num_attention_heads);
    c.head_dim = hidden_size / num_attention_heads;
  }
  if (c.query_pre_attn_scalar == 0 && known.keys.contains("query_pre_attn_scalar"))
    c.query_pre_attn_scalar = c.head_dim;
  if (c.attention_multiplier == 0 && known.keys.contains("attention_multiplier"))
    c.attention_multiplier = 1 / std::sqrt(static_cast<double>(c.head_dim));
  validate(c.head_dim <= widest / num_attention_heads,
           "model.head_dim is {}; allowed with {} heads: 1 to {}", c.head_dim, num_attention_heads,
           widest / num_attention_heads);
  validate(num_experts_per_tok <= num_experts,
           "model.num_experts_per_tok is {}, but num_experts is {}", num_experts_per_tok,
           num_experts);
  for (const auto layer : mlp_only_layers)
    validate(layer >= 0 && layer < num_hidden_layers,
             "model.mlp_only_layers has layer {}; the model has layers 0 to {}", layer,
             num_hidden_layers - 1);
  if (known.keys.contains("layer_types")) resolve_layer_types(c);
  if (known.keys.contains("no_rope_layers")) resolve_no_rope_layers(c);
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
  add_keys(keys, Change::meaning, then, now);
  if (then.lora && now.lora) {
    keys.add("lora.alpha", then.lora->alpha, now.lora->alpha);
    keys.add("lora.rslora", then.lora->rslora, now.lora->rslora);
    keys.add("lora.base", std::string(name_in_inputs(then.lora->base)),
             std::string(name_in_inputs(now.lora->base)));
  }
  if (have_same_parameters(then, now)) return keys.text();
  const bool both_have_experts = then.num_experts > 0 && now.num_experts > 0;
  const auto with_expert_size = [&](ModelConfig config) {
    config.moe_intermediate_size = both_have_experts ? config.expert_size() : 0;
    return config;
  };
  add_keys(keys, Change::reshapes, with_expert_size(then), with_expert_size(now));
  add_adapters(keys, then, now);
  return keys.text();
}

void check_positions(const ModelConfig& config, std::int64_t sequence, std::string_view advice) {
  validate(
      sequence <= config.within_positions(sequence),
      "a sequence of {} tokens needs more positions than model.max_position_embeddings, {}; {}",
      sequence, config.max_position_embeddings, advice);
}

}  // namespace llamesh::model
