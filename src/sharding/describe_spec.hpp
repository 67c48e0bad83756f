#pragma once

#include <string>
#include <string_view>

#include "sharding/shard_layout.hpp"
#include "sharding/sharding_options.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::sharding {

/// Describes compiled placements for --print-spec, one line per weight: name, shape, shape per
/// rank, the axes that divide it, and the bytes of fp32 weight per rank. `name` is the spec's name.
/// When folded, consecutive equal decoder layers appear once.
std::string describe_spec(const ShardLayout& layout, std::string_view name, ResidualLayout residual,
                          Layers layers);

/// Returns a line about weights that every rank holds in full although there are several ranks, or
/// nothing.
std::string describe_whole(const ShardLayout& layout);

}  // namespace llamesh::sharding
