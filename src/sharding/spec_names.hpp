#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/parameters.hpp"
#include "sharding/spec.hpp"

namespace llamesh::sharding {

/// A spec name's role with respect to the `tensor` axis.
enum class SpecRole : std::uint8_t {
  embedding,  ///< embedding weight: by rows (vocabulary) or columns (hidden)
  columns,    ///< weight or output of q, k, v, gate, up: split by the product's output
  rows,       ///< weight of o, down: split by the product's input
  norm,       ///< norm weight
  head,       ///< head's weight or output: split by vocabulary
  residual,   ///< an output in, into or from the residual stream
};

/// A weight or a module output that a spec can name.
struct SpecTarget {
  std::string name;  ///< "model.layers.3.mlp.up_proj.weight"
  bool is_weight;
  SpecRole role;
  /// The weight itself; for an output with role columns or head, the weight that splits it.
  model::ParameterId parameter;
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

 private:
  void add(std::string name, SpecRole role, const model::Leaf* leaf);
  void add_layer(const model::ParameterTable& table, const model::LayerIds& layer);
  [[noreturn]] void refuse(const SpecEntry& entry, const std::string& name) const;

  std::vector<SpecTarget> targets_;
  std::size_t layers_;
  /// By name with `*` for the layer: the targets in all layers in order, or the single one.
  std::map<std::string, std::vector<std::size_t>> by_pattern_;
};

/// A spec name without its [i]; `element` is i, or -1 without one.
struct SpecName {
  std::string name;
  int element;
};
/// Throws a user error if the brackets do not hold a number.
SpecName without_element(const SpecEntry& entry);

}  // namespace llamesh::sharding
