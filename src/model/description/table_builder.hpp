#pragma once

#include <string_view>
#include <utility>

#include "model/description/parameters.hpp"

namespace llamesh::model {

/// Builds a ParameterTable for a family. Add modules in the order in which the forward pass enters
/// them, and parameters that are used together one after the other.
class TableBuilder {
 public:
  /// `norm_weight`: initial value of RMSNorms' weights.
  explicit TableBuilder(Initial norm_weight = Initial::ones);

  ModuleId root() const { return table_.root; }
  /// Adds a child module; the root's children have no prefix.
  ModuleId child(ModuleId parent, std::string_view name);
  /// Adds layer `index` below the module `layers`.
  ModuleId layer(ModuleId layers, std::int64_t index);
  /// Adds a child module with a matrix (out, in) named `weight`.
  WeightModule linear(ModuleId parent, std::string_view name, Shape shape, Role role, Blocks blocks,
                      Initial initial = Initial::normal);
  /// Adds a bias (out), zero at first, to a linear layer.
  void bias(const WeightModule& linear);
  /// Adds a child module with a weight (size): an RMSNorm.
  WeightModule norm(ModuleId parent, std::string_view name, std::int64_t size,
                    Role role = Role::norm, Blocks blocks = {});
  /// Adds a child module with a weight (size) and a bias of zeros, if it has one: a LayerNorm.
  WeightModule layer_norm(ModuleId parent, std::string_view name, std::int64_t size,
                          bool has_bias = true);
  /// Adds the embedding of positions, (positions, D).
  void positions(ModuleId parent, std::string_view name, Shape shape);
  /// Adds a child module that uses another one's weight.
  WeightModule tied(ModuleId parent, std::string_view name, const WeightModule& to);
  /// Adds a parameter to a module: a matrix for each expert, stacked (N, out, in), or a bias, zero
  /// at first (N, out). A token takes `per_token` experts.
  ParameterId experts(ModuleId module, std::string_view name, Shape shape, std::int64_t per_token,
                      Role role, Blocks blocks);
  /// Adds a parameter to a module.
  ParameterId parameter(ModuleId module, std::string_view name, Shape shape, Initial initial,
                        Role role, Blocks blocks = {});
  /// Returns the table; the builder is empty afterwards.
  ParameterTable table(const WeightModule& embed_tokens, const WeightModule& norm,
                       const WeightModule& lm_head);

 private:
  ModuleId module(std::string name, ModuleId parent);

  Initial norm_weight_;
  ParameterTable table_;
};

}  // namespace llamesh::model
