#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/shard_layout.hpp"

namespace llamesh::sharding {

enum class Wrap {
  layer,  ///< the embedding, each decoder layer, final norm + head; a tied embedding in the root
  size,   ///< modules of at least min_numel elements, children first (as FSDP's size policy)
  none,   ///< one unit
};

struct WrapOptions {
  Wrap wrap = Wrap::layer;
  std::int64_t min_numel = 100'000'000;
};

/// The units of a model, in the order in which the forward pass first enters them. A parameter
/// belongs to the nearest wrapped ancestor; what is left falls to the root unit. Empty units are
/// left out. Pure.
std::vector<Unit> make_units(const model::ParameterTable& table, const WrapOptions& options);

/// The same where weights may be sharded along different axes: a unit of several sets of axes
/// becomes one for each of them, which are gathered together. Pure.
std::vector<Unit> make_units(const model::ParameterTable& table, const WrapOptions& options,
                             const comm::ParallelDims& dims, const Placements& placements);

enum class Layers : bool { folded, each };

/// The units with their parameters and sizes, for --print-units. Folded, decoder layers that follow
/// one another and are equal are shown once: "model.layers.0..31", "32 x 12345" elements.
std::string describe_units(const ShardLayout& layout, Layers layers);

}  // namespace llamesh::sharding
