#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/llama_config.hpp"

namespace llamesh::model {

/// Indices into ParameterTable::parameters and ::modules.
enum class ParameterId : int {};
enum class ModuleId : int {};
constexpr std::size_t index(ParameterId id) {
  return static_cast<std::size_t>(id);
}
constexpr std::size_t index(ModuleId id) {
  return static_cast<std::size_t>(id);
}

/// Initial values for a parameter.
enum class Initial { ones, normal };

struct Parameter {
  std::string name;                 ///< Hugging Face's name, e.g.
                                    ///< model.layers.0.self_attn.q_proj.weight
  std::vector<std::int64_t> shape;  ///< (out, in), or (D); any number of dims
  ModuleId module;                  ///< owning module
  Initial initial;

  std::int64_t numel() const;
  /// Weight decay applies only to matrices and stacks of them.
  bool decays() const { return shape.size() >= 2; }
};

/// A node in the module tree, named as in Hugging Face; the root is "".
struct Module {
  std::string name;
  ModuleId parent;  ///< the root is its own parent
};

/// A module with a single weight: a linear layer, a norm, the embedding.
struct Leaf {
  ModuleId module;
  ParameterId weight;
};

/// Modules in one decoder layer.
struct LayerIds {
  ModuleId layer, self_attn, mlp;
  Leaf q_proj, k_proj, v_proj, o_proj;
  Leaf gate_proj, up_proj, down_proj;
  Leaf input_norm, post_attention_norm;
};

/// The only table of names and shapes: sharding, optimizer, checkpoint and planner all use it.
/// Parameters are ordered so that matrices used together (q, k, v; gate, up) are adjacent; modules
/// parents first, in the order that the forward pass enters them.
struct ParameterTable {
  std::vector<Parameter> parameters;
  std::vector<Module> modules;
  ModuleId root;
  Leaf embed_tokens;
  Leaf norm;
  Leaf lm_head;  ///< if tied, its weight is embed_tokens.weight
  std::vector<LayerIds> layers;

  std::int64_t numel() const;
  /// Returns the numel that takes part in matrix products, the N in the 6 N FLOPs rule: all except
  /// the embedding, whose rows are only looked up. A tied embedding counts, because the head
  /// multiplies by it.
  std::int64_t matmul_numel() const;
  bool tied() const { return lm_head.weight == embed_tokens.weight; }
  const Parameter& operator[](ParameterId id) const { return parameters[index(id)]; }
  const Module& operator[](ModuleId id) const { return modules[index(id)]; }
};

/// Returns the table for a resolved config. Pure.
ParameterTable parameter_table(const LlamaConfig& config);

}  // namespace llamesh::model
