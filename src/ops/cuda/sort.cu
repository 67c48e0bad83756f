#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/sort.hpp"

// In a file of its own, because cub takes long to compile.
namespace llamesh::ops::cuda {

void sort_pairs(Stream& stream, std::int32_t* keys, const std::int32_t* keys_in,
                std::int32_t* values, const std::int32_t* values_in, std::int64_t count,
                int key_bits) {
  const auto sort = [&](void* scratch, std::size_t& bytes) {
    check(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys_in, keys, values_in, values, count,
                                          0, key_bits, device::cuda::native(stream)),
          "sort by keys");
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);
  const Scratch scratch(stream, static_cast<std::int64_t>(bytes));
  sort(scratch.as<void>(), bytes);
}

}  // namespace llamesh::ops::cuda
