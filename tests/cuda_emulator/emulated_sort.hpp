#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "emulated_launch.hpp"

/// Emulated counterpart to ops/cuda/sort.cuh.
namespace llamesh::ops::cuda {
inline namespace emulated {

inline void sort_pairs(device::Stream& stream, std::int32_t* keys, const std::int32_t* keys_in,
                       std::int32_t* values, const std::int32_t* values_in, std::int64_t count) {
  put(stream, [=] {
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return keys_in[i]; });
    for (std::int64_t i = 0; i < count; ++i) {
      const auto from = order[static_cast<std::size_t>(i)];
      keys[i] = keys_in[from];
      values[i] = values_in[from];
    }
  });
}

}  // namespace emulated
}  // namespace llamesh::ops::cuda
