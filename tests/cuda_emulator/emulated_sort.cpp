#include <algorithm>
#include <numeric>
#include <vector>

#include "emulated_launch.hpp"
#include "ops/cuda/sort.hpp"

/// Emulated counterpart to ops/cuda/sort.cu.
namespace llamesh::ops::cuda {
inline namespace emulated {

void sort_pairs(Stream& stream, std::int32_t* keys, const std::int32_t* keys_in,
                std::int32_t* values, const std::int32_t* values_in, std::int64_t count,
                int key_bits) {
  put(stream, [=] {
    const auto mask = (std::int64_t{1} << key_bits) - 1;
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return keys_in[i] & mask; });
    for (std::int64_t i = 0; i < count; ++i) {
      const auto from = order[static_cast<std::size_t>(i)];
      keys[i] = keys_in[from];
      values[i] = values_in[from];
    }
  });
}

}  // namespace emulated
}  // namespace llamesh::ops::cuda
