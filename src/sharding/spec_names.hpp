#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/parameters.hpp"
#include "sharding/spec.hpp"

namespace llamesh::sharding {

/// A weight or a module's output that a spec can name.
struct SpecTarget {
  std::string name;  ///< "model.layers.3.mlp.up_proj.weight"
  bool is_weight;
  /// The weight itself. For an output, the weight whose dim 0 divides it along `tensor`; none if
  /// the output goes into the residual stream.
  std::optional<model::ParameterId> parameter;
};

/// The names that a spec can use for a model: Hugging Face's, and those that torchprime's module
/// tree has in addition (docs/sharding-specs.md).
class SpecNames {
 public:
  explicit SpecNames(const model::ParameterTable& table);

  const std::vector<SpecTarget>& targets() const { return targets_; }
  /// The targets that an entry names, by index. Throws a user error that begins with its line for
  /// a name without a target, with the nearest valid one.
  std::vector<std::size_t> find(const SpecEntry& entry) const;

 private:
  void add_module(const model::ParameterTable& table, std::size_t module);
  void add_weight(std::string name, model::ParameterId weight);
  void add_output(std::string name, std::optional<model::ParameterId> weight);
  void add(SpecTarget target);
  [[noreturn]] void refuse(const SpecEntry& entry, const std::string& name) const;

  std::vector<SpecTarget> targets_;
  std::string layer_prefix_;  ///< "model.layers."
  std::size_t layers_;
  /// By name with `*` for the layer: the targets of all layers in order, or the one.
  std::map<std::string, std::vector<std::size_t>> by_pattern_;
};

/// A name of a spec without its [i], which is -1 where there is none.
struct SpecName {
  std::string name;
  int element;
};
/// Throws a user error for brackets that hold no number.
SpecName without_element(const SpecEntry& entry);

}  // namespace llamesh::sharding
