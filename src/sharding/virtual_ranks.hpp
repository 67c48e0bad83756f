#pragma once

namespace llamesh::sharding {

/// The virtual ranks for which a rank stands, a turn for each: a grid with the mesh's innermost
/// axes.
struct VirtualRanks {
  int context = 1, tensor = 1;

  int count() const { return context * tensor; }
  int context_of(int turn) const { return turn / tensor; }
  int tensor_of(int turn) const { return turn % tensor; }
};

}  // namespace llamesh::sharding
