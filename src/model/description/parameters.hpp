#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/box.hpp"
#include "model/description/model_config.hpp"
#include "ops/code_format.hpp"

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

/// A parameter's initial values.
enum class Initial {
  zeros,
  ones,
  xielu_p,          ///< log(exp(0.8) - 1), whose softplus is 0.8
  xielu_n,          ///< log(exp(0.3) - 1)
  normal,           ///< standard deviation initializer_range
  normal_by_depth,  ///< initializer_range / sqrt(2 layers): ends in the residual stream (GPT-2)
  kaiming_uniform,  ///< (r, in): LoraInit::kaiming_uniform
  normal_by_rank,   ///< (r, in): LoraInit::gaussian
};

/// Returns the value that all elements start from, unless they are drawn.
std::optional<float> constant(Initial initial);

/// A parameter's purpose. Tensor parallelism, partition specs and their checks follow from it.
enum class Role : std::uint8_t {
  column,       ///< of a linear layer whose outputs divide among tensor ranks: dim 0, bias included
  row,          ///< of a linear layer whose inputs divide: dim 1; its bias is added to the sum
  vocab,        ///< embedding or head: dim 0 is the vocabulary
  norm,         ///< (D), scales the residual stream
  layer_norm,   ///< (D), likewise, after it is centered; and the bias of such a norm
  per_head,     ///< (E), scales each head: every tensor rank has the gradient by its own heads
  latent,       ///< on the way to a latent, or its norm, whole: likewise
  coefficient,  ///< (1), of an activation: every tensor rank has the gradient by its own features
  replicated,   ///< whole on every tensor rank, which all compute its whole gradient
  router,       ///< (N, D), whole, bias included: every tensor rank has the gradient by its part of
                ///< each expert
  selection_bias,  ///< (N), of a router, whole: chosen by, but without a gradient
  gate,            ///< (1, D), of a shared expert: likewise
  adapter,  ///< a LoRA matrix, whole: every tensor rank has the gradient by its part of the layer
  expert_column,  ///< (N, out, in), one matrix per expert: like `column`, by dim 1, bias included
  expert_row,     ///< (N, out, in): like `row`, by dim 2
  expert_bias,    ///< (N, out), of an expert_row, whole: the first tensor rank adds it
};
/// Returns true if dim 0 of such a parameter counts experts, which an expert axis divides.
constexpr bool is_stacked(Role role) {
  return role == Role::expert_column || role == Role::expert_row || role == Role::expert_bias;
}

/// Returns true if every tensor rank has such a parameter whole, and the gradient by its own part
/// of the layer.
constexpr bool has_partial_gradient(Role role) {
  return role == Role::per_head || role == Role::latent || role == Role::coefficient ||
         role == Role::router || role == Role::gate || role == Role::adapter ||
         role == Role::expert_bias;
}

/// Returns true if such a parameter is fp32 whatever the compute dtype.
constexpr bool is_fp32(Role role) {
  return role == Role::selection_bias;
}

/// Equal blocks of a parameter's divided dim that stay whole: heads, or single features.
struct Blocks {
  std::string_view key;        ///< the config's key that gives `count`, for messages
  std::int64_t count = 0;      ///< 0: the parameter does not divide
  bool may_be_shared = false;  ///< several ranks may hold the same block, as for kv heads
};

struct Parameter {
  std::string name;                 ///< Hugging Face's, e.g. model.layers.0.self_attn.q_proj.weight
  std::vector<std::int64_t> shape;  ///< (out, in), or (D); any number of dims
  ModuleId module;                  ///< the module that it belongs to
  Initial initial;
  Role role = Role::replicated;
  Blocks blocks = {};
  /// Experts are stacked along dim 0. A token takes `count` of them, so that only this share of the
  /// parameter multiplies it.
  struct Taken {
    std::int64_t count = 1, of = 1;
  } taken = {};
  /// The run uses the parameter as it is: it has no gradient and no optimizer state.
  bool frozen = false;
  /// Codes as which a frozen one is kept; none: it is in the compute dtype.
  std::optional<ops::CodeFormat> codes = {};

  std::int64_t numel() const { return llamesh::numel(shape); }
  /// Returns the number of elements that a token takes.
  std::int64_t active_numel() const { return numel() / taken.of * taken.count; }
  /// Returns true for a matrix, and a stack of matrices.
  bool is_matrix() const { return shape.size() >= (is_stacked(role) ? 3U : 2U); }
  /// Weight decay applies to matrices only.
  bool decays() const { return is_matrix(); }
};

/// The dim that divides among tensor ranks. Pure.
std::optional<std::size_t> divided_dim(const Parameter& parameter);

/// The dim that runs along the residual stream's hidden dim, of a parameter that is applied to the
/// residual stream itself: each tensor rank applies it to its part of the stream. Pure.
std::optional<std::size_t> residual_dim(const Parameter& parameter);

/// A node of the module tree, by Hugging Face's names; the root is "".
struct Module {
  std::string name;
  ModuleId parent;                           ///< the root is its own parent
  std::vector<ParameterId> parameters = {};  ///< its own
};

/// A linear layer's low-rank adapter: it adds s (x A^T) B^T (lora.hpp).
struct Adapter {
  ParameterId a;  ///< (r, in), perhaps shared by layers
  ParameterId b;  ///< (out, r)
};

/// A module with a weight: a linear layer, a norm, an embedding.
struct WeightModule {
  ModuleId module;
  ParameterId weight;
  std::optional<ParameterId> bias = {};  ///< of a linear layer, or a LayerNorm
  std::optional<Adapter> adapter = {};   ///< of a linear layer
  bool centers = false;                  ///< a LayerNorm, with or without a bias
};

/// The only table of names and shapes: everything else (sharding, optimizer, checkpoint, planner)
/// asks it. Parameters are listed so that matrices used together (q, k, v; gate, up) are
/// neighbors; modules parents first, in the order in which the forward pass enters them.
struct ParameterTable {
  std::vector<Parameter> parameters;
  std::vector<Module> modules;
  ModuleId root;
  WeightModule embed_tokens;
  std::optional<WeightModule>
      positions;  ///< (positions, D), learned; without it, heads are rotated
  WeightModule norm;
  WeightModule lm_head;      ///< its weight is embed_tokens.weight if they are tied
  std::string layer_prefix;  ///< of the layers' names, which a number follows: "model.layers."
  /// Subtrees whose modules and parameters are contiguous. Layers of one kind are equal; a model
  /// with experts may have dense layers as well.
  std::vector<ModuleId> layers;

  std::int64_t numel() const;
  /// Number of elements that a token takes: all but the experts that it does not take.
  std::int64_t active_numel() const;
  /// Number of elements that take part in matrix products, the N of the 6 N FLOPs rule: all but the
  /// embeddings, whose rows are only looked up. A tied embedding counts, since the head multiplies
  /// by it. Of experts, those count that a token takes.
  std::int64_t matmul_numel() const;
  /// Returns true if the parameter counts in matmul_numel().
  bool multiplies(ParameterId id) const;
  /// Returns true for what the layers' linear layers and experts multiply by: weights to which
  /// precision.linear applies (LinearPrecision).
  bool is_linear(ParameterId id) const;
  std::int64_t trained_numel() const;
  /// Returns the module at which the backward pass ends, the first one that holds a trained
  /// parameter: a layer, the final norm, or the root if an embedding is trained.
  ModuleId backward_end() const;
  /// Returns true if the backward pass enters the layer.
  bool has_backward(std::size_t layer) const {
    return index(layers[layer]) >= index(backward_end());
  }
  /// Returns, per layer, the last layer of its kind: with parameters of the same names and shapes.
  std::vector<std::size_t> last_of_kind() const;
  bool tied() const { return lm_head.weight == embed_tokens.weight; }
  /// Returns the child of a module, by its last name.
  std::optional<ModuleId> find_child(ModuleId parent, std::string_view name) const;
  /// Like find_child(); the table has it.
  ModuleId child(ModuleId parent, std::string_view name) const;
  /// Returns a module with its weight, its first parameter, and its bias and adapter, if it has
  /// them.
  WeightModule weight_module(ModuleId parent, std::string_view name) const;
  const Parameter& operator[](ParameterId id) const { return parameters[index(id)]; }
  const Module& operator[](ModuleId id) const { return modules[index(id)]; }
};

/// Returns the table of a resolved config: as its family builds it, with adapters if it has them.
/// Throws a user error if their targets do not fit the model. Pure.
ParameterTable parameter_table(const ModelConfig& config);

/// Patterns that choose the parameters to train. A pattern is the name of a weight or a module as
/// in Hugging Face's folders, with wildcards as in fnmatch(3); `*` matches any text. A module
/// stands for all weights in it.
struct TrainedOptions {
  std::vector<std::string> freeze;  ///< these parameters are frozen
  std::vector<std::string> only;    ///< if not empty: all others are frozen too
};

/// Marks the frozen parameters in the config's whole table. Throws a user error for a pattern that
/// matches nothing, with the nearest names, or a part of a parameter (one expert, one of two tied
/// weights), and if nothing is left to train.
void freeze_parameters(ParameterTable& table, const ModelConfig& config,
                       const TrainedOptions& options);

}  // namespace llamesh::model
