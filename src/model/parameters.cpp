#include "model/parameters.hpp"

#include <fmt/format.h>

#include <utility>

namespace llamesh::model {
namespace {

/// Builder for the table; ids are positions.
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
  /// Adds a leaf module with a matrix (out, in).
  Leaf linear(ModuleId parent, const char* name, std::int64_t out, std::int64_t in) {
    return matrix(child(parent, name), out, in);
  }
  Leaf norm(ModuleId parent, const char* name, std::int64_t size) {
    return {child(parent, name), parameter({size}, Initial::ones)};
  }
  Leaf matrix(ModuleId m, std::int64_t out, std::int64_t in) {
    return {m, parameter({out, in}, Initial::normal)};
  }

 private:
  /// Adds the weight for the newest module.
  ParameterId parameter(std::vector<std::int64_t> shape, Initial initial) {
    const auto m = static_cast<ModuleId>(table_.modules.size() - 1);
    table_.parameters.push_back({table_[m].name + ".weight", std::move(shape), m, initial});
    return static_cast<ParameterId>(table_.parameters.size() - 1);
  }
  ParameterTable& table_;
};

LayerIds add_layer(Builder& add, ModuleId layers, const std::string& name, const LlamaConfig& c) {
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  const std::int64_t d = c.hidden_size;
  const std::int64_t f = c.intermediate_size;
  LayerIds l{};
  l.layer = add.module(name, layers);
  l.self_attn = add.child(l.layer, "self_attn");
  l.q_proj = add.linear(l.self_attn, "q_proj", q, d);
  l.k_proj = add.linear(l.self_attn, "k_proj", kv, d);
  l.v_proj = add.linear(l.self_attn, "v_proj", kv, d);
  l.o_proj = add.linear(l.self_attn, "o_proj", d, q);
  l.mlp = add.child(l.layer, "mlp");
  l.gate_proj = add.linear(l.mlp, "gate_proj", f, d);
  l.up_proj = add.linear(l.mlp, "up_proj", f, d);
  l.down_proj = add.linear(l.mlp, "down_proj", d, f);
  l.input_norm = add.norm(l.layer, "input_layernorm", d);
  l.post_attention_norm = add.norm(l.layer, "post_attention_layernorm", d);
  return l;
}

}  // namespace

std::int64_t Parameter::numel() const {
  std::int64_t n = 1;
  for (const auto size : shape) n *= size;
  return n;
}

std::int64_t ParameterTable::numel() const {
  std::int64_t n = 0;
  for (const auto& p : parameters) n += p.numel();
  return n;
}

std::int64_t ParameterTable::matmul_numel() const {
  return tied() ? numel() : numel() - (*this)[embed_tokens.weight].numel();
}

ParameterTable parameter_table(const LlamaConfig& c) {
  ParameterTable t;
  Builder add(t);
  t.root = add.module("", ModuleId{0});
  const auto model = add.module("model", t.root);
  t.embed_tokens = add.linear(model, "embed_tokens", c.vocab_size, c.hidden_size);
  const auto layers = add.child(model, "layers");
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    t.layers.push_back(add_layer(add, layers, fmt::format("model.layers.{}", i), c));
  t.norm = add.norm(model, "norm", c.hidden_size);
  const auto head = add.module("lm_head", t.root);
  t.lm_head = c.tie_word_embeddings ? Leaf{head, t.embed_tokens.weight}
                                    : add.matrix(head, c.vocab_size, c.hidden_size);
  return t;
}

}  // namespace llamesh::model
