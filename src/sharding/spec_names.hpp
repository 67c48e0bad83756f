#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/description/parameters.hpp"

namespace llamesh::sharding {

/// One line in a partition spec: the mesh axes along which a weight, or a module's output, is
/// divided.
struct SpecEntry {
  std::string name;  ///< Hugging Face's, with `*` for a number; an output may also end in [0]
  std::vector<std::vector<std::string>> dims;  ///< per dim: axes, major to minor; none: whole
  std::string where;  ///< for messages: "inputs/specs/fsdp.yaml:12" or "command line"
};

/// A partition spec (docs/sharding-specs.md) from `sharding.spec` in the input file. Names are
/// unique: config/ rejects duplicates.
struct Spec {
  std::vector<SpecEntry> entries;
};

/// Formats dims as written in a spec: "[[shard, replicate], null]".
std::string to_string(const std::vector<std::vector<std::string>>& dims);

/// A weight or a module output that a spec can name.
struct SpecTarget {
  std::string name;  ///< "model.layers.3.mlp.up_proj.weight"
  bool is_weight;
  /// The weight itself. For an output, the weight whose dim 0 divides it along `tensor`, if it is
  /// divided; none if the output goes into the residual stream.
  std::optional<model::ParameterId> parameter;
};

/// Names that a spec can use for a model: Hugging Face's, plus those in torchprime's module tree
/// (docs/sharding-specs.md).
class SpecNames {
 public:
  explicit SpecNames(const model::ParameterTable& table);

  const std::vector<SpecTarget>& targets() const { return targets_; }
  /// Returns the indices of the targets that an entry names. Throws a user error that begins with
  /// its line for a name without a target, with the nearest valid one.
  std::vector<std::size_t> find(const SpecEntry& entry) const;
  /// Returns true if an entry's name has `*` for the layer's number.
  bool is_for_every_layer(const SpecEntry& entry) const {
    return entry.name.starts_with(layer_prefix_ + '*');
  }

 private:
  void add_module(const model::ParameterTable& table, std::size_t module);
  void add_weight(std::string name, model::ParameterId weight);
  void add_output(std::string name, std::optional<model::ParameterId> weight);
  void add(SpecTarget target);
  [[noreturn]] void refuse(const SpecEntry& entry, const std::string& name) const;

  std::vector<SpecTarget> targets_;
  std::string layer_prefix_;  ///< "model.layers."
  std::size_t layers_;
  /// By name with `*` for the layer: the targets in all layers in order, or the single one.
  std::map<std::string, std::vector<std::size_t>> by_pattern_;
};

/// Returns the spec with a leading null in each entry for the (out, in) matrix of every expert,
/// "experts.*.w1.weight": the dims of their stack.
Spec with_stack_dims(Spec spec);

/// A spec name without its [i]; `element` is i, or -1 without one.
struct SpecName {
  std::string name;
  int element;
};
/// Throws a user error if the brackets do not hold a number.
SpecName without_element(const SpecEntry& entry);

}  // namespace llamesh::sharding
