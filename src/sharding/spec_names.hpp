#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/parameters.hpp"
#include "sharding/spec.hpp"

namespace llamesh::sharding {

/// What a name of a spec means, as far as the axis `tensor` is concerned.
enum class SpecRole : std::uint8_t {
  embedding,  ///< weight of the embedding: by rows (vocabulary) or columns (hidden)
  columns,    ///< weight or output of q, k, v, gate, up: cut by what comes out of the product
  rows,       ///< weight of o, down: cut by what goes into the product
  norm,       ///< weight of a norm
  head,       ///< weight or output of the head: cut by the vocabulary
  residual,   ///< an output that is, or goes into or comes out of, the residual stream
};

/// A weight or a module's output that a spec can name.
struct SpecTarget {
  std::string name;  ///< "model.layers.3.mlp.up_proj.weight"
  bool is_weight;
  SpecRole role;
  /// The weight itself; of an output with the role columns or head the weight that cuts it.
  model::ParameterId parameter;
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
  void add(std::string name, SpecRole role, const model::Leaf* leaf);
  void add_layer(const model::ParameterTable& table, const model::LayerIds& layer);
  [[noreturn]] void refuse(const SpecEntry& entry, const std::string& name) const;

  std::vector<SpecTarget> targets_;
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
