#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "sharding/shard_layout.hpp"

namespace llamesh::sharding {

enum class Wrap {
  layer,  ///< the embedding, each decoder layer, final norm + head; a tied embedding in the root
  size,   ///< modules with at least min_numel elements, children first (like FSDP's size policy)
  none,   ///< one unit
};
inline EnumNames<Wrap> enum_names(Wrap) {
  using enum Wrap;
  return {{{"layer", layer}, {"size", size}, {"none", none}}};
}

struct WrapOptions {
  Wrap wrap = Wrap::layer;
  std::int64_t min_numel = 100'000'000;
};

/// Returns a model's units in the order that the forward pass first enters them. A parameter
/// belongs to its nearest wrapped ancestor, or else to the root unit. Empty units are omitted.
/// Pure.
std::vector<Unit> make_units(const model::ParameterTable& table, const WrapOptions& options);

/// Overload for weights that may be sharded along different axes, frozen, or always fp32: splits a
/// unit into one per set of axes, into frozen and trained ones, and by dtype; these are gathered
/// together. Pure.
std::vector<Unit> make_units(const model::ParameterTable& table, const WrapOptions& options,
                             const comm::ParallelDims& dims, const Placements& placements);

enum class Layers : bool { folded, each };

/// Describes the units with their parameters and sizes, for --print-units. When folded, consecutive
/// equal decoder layers appear once: "model.layers.0..31", "32 x 12345" elements.
std::string describe_units(const ShardLayout& layout, Layers layers);

}  // namespace llamesh::sharding
