#pragma once

#include "sharding/placement.hpp"

namespace llamesh::test {

/// Placements that no strategy has: one parameter after another is cut along `tensor` by its first
/// dim, by its last one, or not at all, and sharded along `shard`.
inline sharding::Placements cut_in_turn(const model::ParameterTable& table,
                                        const comm::ParallelDims& dims) {
  auto placements = sharding::whole_and_sharded(table, dims);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    auto& cut = placements[i].cut;
    if (i % 3 == 0) cut.front() = dims.named({"tensor"});
    if (i % 3 == 1) cut.back() = dims.named({"tensor"});
  }
  return placements;
}

}  // namespace llamesh::test
