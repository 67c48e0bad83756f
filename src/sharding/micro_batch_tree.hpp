#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace llamesh::sharding {

/// A place for a micro-batch's gradients, so that a step's add up as a balanced binary tree over
/// its micro-batches, ((g0 + g1) + (g2 + g3)) + ...: one among a few sums, each over 1, 2, 4, ...
/// neighbors. The last micro-batch leaves the total in sum 0.
struct TreePlace {
  int sum;
  bool adds;    ///< to the sum, or else begins it
  int carries;  ///< how often the sum, once it is complete, is then added to the one before it
};

inline TreePlace tree_place(std::int64_t micro_batch) {
  const auto bits = static_cast<std::uint64_t>(micro_batch);
  const bool odd = (bits & 1U) != 0;
  return {.sum = std::popcount(bits >> 1U),
          .adds = odd,
          .carries = odd ? std::countr_one(bits) - 1 : 0};
}

/// Returns the sums that so many micro-batches, a power of two, need.
inline int tree_sums(std::int64_t micro_batches) {
  return std::max(1, std::countr_zero(static_cast<std::uint64_t>(micro_batches)));
}

}  // namespace llamesh::sharding
