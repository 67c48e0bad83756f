#pragma once

#include <string>
#include <string_view>

#include "sharding/shard_layout.hpp"
#include "sharding/sharding_options.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::sharding {

/// The compiled placements for --print-spec, a line for each weight: its name, shape and shape on a
/// rank, the axes along which it is divided, and the bytes of the fp32 weight that a rank keeps.
/// `name` is that of the spec. Folded, equal decoder layers that follow one another are shown once.
std::string describe_spec(const ShardLayout& layout, std::string_view name, ResidualLayout residual,
                          Layers layers);

/// A line about the weights that all ranks keep whole though there are several, or nothing.
std::string describe_whole(const ShardLayout& layout);

}  // namespace llamesh::sharding
