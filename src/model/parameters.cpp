#include "model/parameters.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/error.hpp"

namespace llamesh::model {
namespace {

/// Grows the table; ids are positions.
class Builder {
 public:
  explicit Builder(ParameterTable& table) : table_(table) {}

  ModuleId module(std::string name, ModuleId parent) {
    table_.modules.push_back({std::move(name), parent});
    return static_cast<ModuleId>(table_.modules.size() - 1);
  }
  ModuleId child(ModuleId parent, const char* name) {
    return module(fmt::format("{}.{}", table_[parent].name, name), parent);
  }
  /// Adds a child module with a matrix (out, in).
  WeightModule linear(ModuleId parent, const char* name, Shape shape, Role role, Blocks blocks) {
    const auto m = child(parent, name);
    return {m, weight(m, std::move(shape), Initial::normal, role, blocks)};
  }
  WeightModule norm(ModuleId parent, const char* name, std::int64_t size) {
    const auto m = child(parent, name);
    return {m, weight(m, {size}, Initial::ones, Role::norm, {})};
  }
  ParameterId weight(ModuleId m, Shape shape, Initial initial, Role role, Blocks blocks) {
    const auto id = static_cast<ParameterId>(table_.parameters.size());
    auto& module = table_.modules[index(m)];
    table_.parameters.push_back(
        {module.name + ".weight", std::move(shape), m, initial, role, blocks});
    module.parameters.push_back(id);
    return id;
  }

 private:
  ParameterTable& table_;
};

ModuleId add_layer(Builder& add, ModuleId layers, const std::string& name, const LlamaConfig& c) {
  const Blocks heads{"num_attention_heads", c.num_attention_heads};
  const Blocks kv_heads{"num_key_value_heads", c.num_key_value_heads, /*may_be_shared=*/true};
  const Blocks features{"intermediate_size", c.intermediate_size};
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  const std::int64_t d = c.hidden_size;
  const std::int64_t f = c.intermediate_size;
  const auto layer = add.module(name, layers);
  const auto self_attn = add.child(layer, "self_attn");
  add.linear(self_attn, "q_proj", {q, d}, Role::column, heads);
  add.linear(self_attn, "k_proj", {kv, d}, Role::column, kv_heads);
  add.linear(self_attn, "v_proj", {kv, d}, Role::column, kv_heads);
  add.linear(self_attn, "o_proj", {d, q}, Role::row, heads);
  const auto mlp = add.child(layer, "mlp");
  add.linear(mlp, "gate_proj", {f, d}, Role::column, features);
  add.linear(mlp, "up_proj", {f, d}, Role::column, features);
  add.linear(mlp, "down_proj", {d, f}, Role::row, features);
  add.norm(layer, "input_layernorm", d);
  add.norm(layer, "post_attention_layernorm", d);
  return layer;
}

}  // namespace

std::optional<std::size_t> divided_dim(const Parameter& parameter) {
  if (parameter.blocks.count == 0) return {};
  if (parameter.role != Role::row) return 0;
  return parameter.shape.size() > 1 ? std::optional<std::size_t>(1) : std::nullopt;
}

std::optional<std::size_t> residual_dim(const Parameter& parameter) {
  const bool is_vector = parameter.shape.size() == 1;
  if (parameter.role == Role::norm || (parameter.role == Role::row && is_vector)) return 0;
  return {};
}

std::int64_t ParameterTable::numel() const {
  std::int64_t n = 0;
  for (const auto& p : parameters) n += p.numel();
  return n;
}

std::int64_t ParameterTable::matmul_numel() const {
  return tied() ? numel() : numel() - (*this)[embed_tokens.weight].numel();
}

ModuleId ParameterTable::child(ModuleId parent, std::string_view name) const {
  const auto& prefix = (*this)[parent].name;
  for (auto m = index(parent) + 1; m < modules.size(); ++m) {
    const std::string_view full = modules[m].name;
    if (modules[m].parent == parent && full.ends_with(name) &&
        full.size() == prefix.size() + (prefix.empty() ? 0 : 1) + name.size())
      return static_cast<ModuleId>(m);
  }
  expects(false, "{} has no module {}", prefix, name);
  return {};
}

WeightModule ParameterTable::weight_module(ModuleId parent, std::string_view name) const {
  const auto module = child(parent, name);
  return {module, (*this)[module].parameters.front()};
}

ParameterTable parameter_table(const LlamaConfig& c) {
  const Blocks vocabulary{"vocab_size", c.vocab_size};
  ParameterTable t;
  Builder add(t);
  t.root = add.module("", ModuleId{0});
  const auto model = add.module("model", t.root);
  t.embed_tokens =
      add.linear(model, "embed_tokens", {c.vocab_size, c.hidden_size}, Role::vocab, vocabulary);
  const auto layers = add.child(model, "layers");
  t.layer_prefix = t[layers].name + '.';
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    t.layers.push_back(add_layer(add, layers, fmt::format("{}{}", t.layer_prefix, i), c));
  t.norm = add.norm(model, "norm", c.hidden_size);
  const auto head = add.module("lm_head", t.root);
  t.lm_head = {head, t.embed_tokens.weight};
  if (!c.tie_word_embeddings)
    t.lm_head.weight =
        add.weight(head, {c.vocab_size, c.hidden_size}, Initial::normal, Role::vocab, vocabulary);
  return t;
}

}  // namespace llamesh::model
