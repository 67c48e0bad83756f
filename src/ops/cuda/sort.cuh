#pragma once

#include "ops/cuda/device_code.cuh"
#ifdef LLAMESH_CUDA_EMULATED
#include <emulated_sort.hpp>
#else
#include <cub/device/device_radix_sort.cuh>

/// Sorting, which a library does.
namespace LLAMESH_OPS_CUDA {

/// Sorts `count` pairs by their key, keeping the order of pairs with equal keys.
inline void sort_pairs(Stream& stream, std::int32_t* keys, const std::int32_t* keys_in,
                       std::int32_t* values, const std::int32_t* values_in, std::int64_t count) {
  const auto sort = [&](void* scratch, std::size_t& bytes) {
    check(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys_in, keys, values_in, values, count,
                                          0, 32, device::cuda::native(stream)),
          "sort of tokens");
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);
  const Scratch scratch(stream, static_cast<std::int64_t>(bytes));
  sort(scratch.as<void>(), bytes);
}

}  // namespace LLAMESH_OPS_CUDA
#endif
