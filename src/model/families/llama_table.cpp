#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "model/description/table_builder.hpp"
#include "model/families/llama_like.hpp"

namespace llamesh::model {
namespace {

/// Of the experts' biases, behind their matrices' names.
constexpr std::string_view bias_suffix = "_bias";

void add_qk_norms(TableBuilder& add, ModuleId self_attn, const LlamaVariant& variant,
                  const ModelConfig& c, Blocks heads, Blocks kv_heads) {
  const auto add_norm = [&](std::string_view name, Blocks blocks) {
    if (variant.qk_norm == QkNorm::per_head)
      add.norm(self_attn, name, c.head_dim, Role::per_head);
    else
      add.norm(self_attn, name, blocks.count * c.head_dim, Role::column, blocks);
  };
  add_norm(variant.names.q_norm, heads);
  add_norm(variant.names.k_norm, kv_heads);
}

void add_attention(TableBuilder& add, ModuleId layer, const LlamaVariant& variant,
                   const ModelConfig& c) {
  const Blocks heads{"num_attention_heads", c.num_attention_heads};
  const Blocks kv_heads{"num_key_value_heads", c.num_key_value_heads, /*may_be_shared=*/true};
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  const auto& names = variant.names;
  const auto self_attn = add.child(layer, names.attention);
  if (const auto sinks = names.sinks; !sinks.empty())
    add.parameter(self_attn, sinks, {heads.count}, Initial::normal, Role::column, heads);
  const auto q_proj = add.linear(self_attn, names.q_proj, {q, c.hidden_size}, Role::column, heads);
  const auto k_proj =
      add.linear(self_attn, names.k_proj, {kv, c.hidden_size}, Role::column, kv_heads);
  const auto v_proj =
      add.linear(self_attn, names.v_proj, {kv, c.hidden_size}, Role::column, kv_heads);
  const bool normed = variant.qk_norm != QkNorm::none;
  if (normed && (c.use_qk_norm || !variant.takes("use_qk_norm")))
    add_qk_norms(add, self_attn, variant, c, heads, kv_heads);
  const auto o_proj = add.linear(self_attn, names.o_proj, {c.hidden_size, q}, Role::row, heads);
  if (c.attention_bias || variant.qkv_bias)
    for (const auto& linear : {q_proj, k_proj, v_proj}) add.bias(linear);
  if (c.*variant.o_bias) add.bias(o_proj);
}

/// Adds attention whose queries, keys and values follow from latents.
void add_latent_attention(TableBuilder& add, ModuleId layer, const LlamaVariant& variant,
                          const ModelConfig& c) {
  const Blocks heads{"num_attention_heads", c.num_attention_heads};
  const auto H = c.num_attention_heads, D = c.hidden_size;
  const auto& names = variant.names;
  const auto self_attn = add.child(layer, names.attention);
  const auto add_latent = [&](std::string_view name, std::int64_t rows) {
    const auto linear = add.linear(self_attn, name, {rows, D}, Role::latent, {});
    if (c.attention_bias) add.bias(linear);
  };
  if (const auto rank = c.q_lora_rank; rank > 0) {
    add_latent(names.q_a_proj, rank);
    add.norm(self_attn, names.q_a_norm, rank, Role::latent);
    add.linear(self_attn, names.q_b_proj, {H * c.head_dim, rank}, Role::column, heads);
  } else {
    add.linear(self_attn, names.q_proj, {H * c.head_dim, D}, Role::column, heads);
  }
  add_latent(names.kv_a_proj, c.kv_lora_rank + c.qk_rope_head_dim);
  add.norm(self_attn, names.kv_a_norm, c.kv_lora_rank, Role::latent);
  add.linear(self_attn, names.kv_b_proj, {H * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank},
             Role::column, heads);
  const auto o_proj = add.linear(self_attn, names.o_proj, {D, H * c.v_head_dim}, Role::row, heads);
  if (c.*variant.o_bias) add.bias(o_proj);
}

/// Adds a norm of the residual stream.
WeightModule add_norm(TableBuilder& add, ModuleId parent, const LlamaVariant& variant,
                      std::string_view name, const ModelConfig& c) {
  return variant.layer_norm_eps_name != nullptr
             ? add.layer_norm(parent, name, c.hidden_size, variant.layer_norm_bias)
             : add.norm(parent, name, c.hidden_size);
}

/// Adds an MLP's layers, with so many features.
void add_mlp(TableBuilder& add, ModuleId mlp, const LlamaVariant& variant, const ModelConfig& c,
             Blocks features) {
  const Shape in{features.count, c.hidden_size};
  const auto& names = variant.names;
  std::vector<WeightModule> linears;
  if (ops::inputs_of(variant.activation) == 2)
    linears.push_back(add.linear(mlp, names.gate_proj, in, Role::column, features));
  linears.push_back(add.linear(mlp, names.up_proj, in, Role::column, features));
  if (variant.activation == ops::Activation::xielu) {
    const auto act_fn = add.child(mlp, names.act_fn);
    add.parameter(act_fn, "alpha_p", {1}, Initial::xielu_p, Role::coefficient);
    add.parameter(act_fn, "alpha_n", {1}, Initial::xielu_n, Role::coefficient);
  }
  linears.push_back(
      add.linear(mlp, names.down_proj, {c.hidden_size, features.count}, Role::row, features));
  if (c.mlp_bias)
    for (const auto& linear : linears) add.bias(linear);
}

void add_experts(TableBuilder& add, ModuleId mlp, const LlamaVariant& variant,
                 const ModelConfig& c) {
  const auto N = c.num_experts, k = c.num_experts_per_tok, D = c.hidden_size, F = c.expert_size();
  const auto& names = variant.names;
  if (const auto shared = c.shared_expert_intermediate_size; shared > 0) {
    add_mlp(add, add.child(mlp, names.shared_expert), variant, c,
            {"shared_expert_intermediate_size", shared});
    if (!names.shared_expert_gate.empty())
      add.linear(mlp, names.shared_expert_gate, {1, D}, Role::gate, {});
  }
  const Blocks features{c.moe_intermediate_size > 0 ? "moe_intermediate_size" : "intermediate_size",
                        F};
  const auto router = add.linear(mlp, names.router, {N, D}, Role::router, {});
  if (variant.interleaved_experts) add.bias(router);
  if (const auto bias = names.selection_bias; !bias.empty()) {
    const auto dot = bias.find('.');
    const bool in_router = dot != std::string_view::npos;
    add.parameter(in_router ? router.module : mlp, in_router ? bias.substr(dot + 1) : bias, {N},
                  Initial::zeros, Role::selection_bias);
  }
  const auto experts = add.child(mlp, names.experts);
  add.experts(experts, names.gate_proj, {N, F, D}, k, Role::expert_column, features);
  add.experts(experts, names.up_proj, {N, F, D}, k, Role::expert_column, features);
  add.experts(experts, names.down_proj, {N, D, F}, k, Role::expert_row, features);
  if (!variant.interleaved_experts) return;
  const auto add_bias = [&](std::string_view of, std::int64_t size, Role role, Blocks blocks) {
    add.experts(experts, fmt::format("{}{}", of, bias_suffix), {N, size}, k, role, blocks);
  };
  add_bias(names.gate_proj, F, Role::expert_column, features);
  add_bias(names.up_proj, F, Role::expert_column, features);
  add_bias(names.down_proj, D, Role::expert_bias, {});
}

void add_llama_layer(TableBuilder& add, ModuleId layer, const LlamaVariant& variant,
                     const ModelConfig& c, std::size_t index) {
  (c.has_latent_attention() ? add_latent_attention : add_attention)(add, layer, variant, c);
  const auto& names = variant.names;
  const auto mlp = add.child(layer, names.mlp);
  if (c.has_experts(index))
    add_experts(add, mlp, variant, c);
  else
    add_mlp(add, mlp, variant, c, {"intermediate_size", c.intermediate_size});
  for (const auto name : {names.norm_before_attention, names.norm_after_attention,
                          names.norm_before_mlp, names.norm_after_mlp})
    if (!name.empty()) add_norm(add, layer, variant, name, c);
}

}  // namespace

ParameterTable make_llama_table(const LlamaVariant& variant, const ModelConfig& c) {
  const Blocks vocabulary{"vocab_size", c.vocab_size};
  const Shape vocabulary_shape{c.vocab_size, c.hidden_size};
  TableBuilder add(variant.norm_offset == 0 ? Initial::ones : Initial::zeros);
  const auto model = add.child(add.root(), "model");
  const auto embed_tokens =
      add.linear(model, variant.embed_tokens, vocabulary_shape, Role::vocab, vocabulary);
  const auto layers = add.child(model, "layers");
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    add_llama_layer(add, add.layer(layers, i), variant, c, static_cast<std::size_t>(i));
  const auto norm = add_norm(add, model, variant, "norm", c);
  const auto lm_head =
      c.tie_word_embeddings
          ? add.tied(add.root(), variant.lm_head, embed_tokens)
          : add.linear(add.root(), variant.lm_head, vocabulary_shape, Role::vocab, vocabulary);
  return add.table(embed_tokens, norm, lm_head);
}

namespace {

/// Returns 0 for the square root of head_dim.
float score_divisor(const ModelConfig& c) {
  if (c.has_latent_attention()) {
    const bool scaled = c.rope_scaling && c.rope_scaling->factor > 1;
    const double growth =
        scaled ? 0.1 * c.rope_scaling->mscale_all_dim * std::log(c.rope_scaling->factor) : 0;
    return static_cast<float>(std::sqrt(static_cast<double>(c.head_dim)) /
                              ((1 + growth) * (1 + growth)));
  }
  if (c.attention_multiplier > 0) return static_cast<float>(1 / c.attention_multiplier);
  return std::sqrt(static_cast<float>(c.query_pre_attn_scalar));
}

std::optional<Rope> rope_of(const LlamaVariant& variant, const ModelConfig& c, std::size_t layer) {
  if (!c.rotates(layer)) return std::nullopt;
  const bool windowed = c.window(layer) > 0;
  const auto unscaled = [&](double theta) {
    return Rope{.theta = theta, .dims = c.rotary_dims(), .scaling = {}};
  };
  auto rope = unscaled(c.rope_theta);
  rope.scaling = c.rope_scaling;
  switch (variant.window_rope) {
    case WindowRope::same:
      return rope;
    case WindowRope::own_base:
      return windowed ? unscaled(c.rope_local_base_freq) : rope;
    case WindowRope::unscaled:
      return windowed ? unscaled(c.rope_theta) : rope;
    case WindowRope::only_windowed:
      return windowed || c.sliding_window == 0 ? std::optional(rope) : std::nullopt;
    case WindowRope::windowed:
      return windowed ? std::optional(rope) : std::nullopt;
  }
  return rope;
}

}  // namespace

ModelTraits llama_traits(const LlamaVariant& variant, const ModelConfig& c) {
  ModelTraits traits{.layers = {},
                     .embedding_scale = static_cast<float>(c.embedding_multiplier),
                     .residual_scale = static_cast<float>(c.residual_multiplier),
                     .logit_scale = static_cast<float>(1 / c.logits_scaling),
                     .logit_softcap = static_cast<float>(c.final_logit_softcapping),
                     .norm_offset = variant.norm_offset};
  if (variant.scales_embedding)
    traits.embedding_scale = std::sqrt(static_cast<float>(c.hidden_size));
  for (std::size_t i = 0; std::cmp_less(i, c.num_hidden_layers); ++i)
    traits.layers.push_back({.names = variant.names,
                             .activation = variant.activation,
                             .window = c.window(i),
                             .rope = rope_of(variant, c, i),
                             .rotates_before_norm = variant.rotates_before_norm,
                             .score_divisor = score_divisor(c),
                             .softcap = static_cast<float>(c.attn_logit_softcapping),
                             .parallel = variant.parallel});
  return traits;
}

namespace {

/// Returns the name of the module that fuses this one in the folders; empty: none does.
std::string_view fused_as(const LlamaVariant& variant, std::string_view module) {
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, module) != names.end();
  };
  const auto& names = variant.names;
  if (variant.fused_qkv != nullptr && is({names.q_proj, names.k_proj, names.v_proj}))
    return variant.fused_qkv;
  if (variant.fused_gate_up != nullptr && is({names.gate_proj, names.up_proj}))
    return variant.fused_gate_up;
  return {};
}

/// Returns where q, k or v has its rows if they are fused by kv head.
RowBlocks rows_by_kv_head(const LayerNames& names, const ModelConfig& c, std::string_view module) {
  const auto queries = c.num_attention_heads / c.num_key_value_heads * c.head_dim;
  const auto step = queries + 2 * c.head_dim;
  if (module == names.q_proj) return {queries, 0, step};
  return {c.head_dim, module == names.k_proj ? queries : queries + c.head_dim, step};
}

/// Returns how the rows of the module's parameters order the heads' dims, if these may rotate.
std::optional<RotaryOrder> rotary_order(const LlamaVariant& variant, const ModelConfig& c,
                                        std::string_view module) {
  const auto& names = variant.names;
  RotaryOrder order{c.head_dim, c.rotary_dims(), variant.rotary_pairs};
  order.rotates_last = c.has_latent_attention();
  if (module == names.kv_a_proj) {  // behind the latent, one head with RoPE alone
    order.first_row = c.kv_lora_rank;
    order.head_dim = order.rotated;
    return order;
  }
  const bool rotary = module == names.q_proj || module == names.q_b_proj ||
                      module == names.k_proj || module == names.q_norm || module == names.k_norm;
  return rotary ? std::optional(order) : std::nullopt;
}

}  // namespace

namespace {

/// Adds a parameter that interleaved experts have.
void add_interleaved(StateDictBuilder& dict, ParameterId id, const ParameterTable& table,
                     const LayerNames& names) {
  const auto& p = table[id];
  const auto& module = table[p.module].name;
  const auto name = std::string_view(p.name).substr(module.size() + 1);
  const auto matrix = name.substr(0, name.size() - (p.is_matrix() ? 0 : bias_suffix.size()));
  if (matrix == names.down_proj)
    p.is_matrix() ? dict.transposed(id) : dict.plain(id);
  else
    dict.interleaved(fmt::format("{}.gate_up_proj{}", module, name.substr(matrix.size())), id,
                     {.place = matrix == names.gate_proj ? 0 : 1, .of = 2});
}

}  // namespace

StateDict llama_state_dict(const LlamaVariant& variant, const ModelConfig& c,
                           const ParameterTable& table) {
  StateDictBuilder dict(table);
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto id = static_cast<ParameterId>(i);
    const auto& [path, parent, parameters] = table[table[id].module];
    const auto module = std::string_view(path).substr(path.rfind('.') + 1);
    const auto order = rotary_order(variant, c, module);
    if (const auto fused = fused_as(variant, module); !fused.empty()) {
      const auto suffix = std::string_view(table[id].name).substr(path.size());
      const auto name = fmt::format("{}.{}{}", table[parent].name, fused, suffix);
      if (variant.groups_qkv)
        dict.fused(name, id, rows_by_kv_head(variant.names, c, module));
      else
        order ? dict.fused(name, id, *order) : dict.fused(name, id, /*transposed=*/false);
    } else if (is_stacked(table[id].role) && variant.interleaved_experts) {
      add_interleaved(dict, id, table, variant.names);
    } else if (is_stacked(table[id].role)) {
      dict.unstacked(id);
    } else if (order) {
      dict.rotary(id, *order);
    } else {
      dict.plain(id);
    }
  }
  return dict.take();
}

std::vector<StoredConstant> llama_constants(const ParameterTable& table) {
  std::vector<StoredConstant> constants;
  for (const auto& module : table.modules) {
    const auto& ids = module.parameters;
    if (ids.empty() || table[ids.front()].role != Role::coefficient) continue;
    constants.push_back({module.name + ".beta", 0.5F});
    constants.push_back({module.name + ".eps", -1e-6F});
  }
  return constants;
}

}  // namespace llamesh::model
