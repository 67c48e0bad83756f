#pragma once

#include <cstdint>

#include "ops/cuda/kernels.hpp"

/// Sorting, which a library does (sort.cu).
namespace LLAMESH_OPS_CUDA {

/// Sorts `count` pairs by the lowest `key_bits` bits of their keys, which are not negative. Pairs
/// with equal keys keep their order.
void sort_pairs(Stream& stream, std::int32_t* keys, const std::int32_t* keys_in,
                std::int32_t* values, const std::int32_t* values_in, std::int64_t count,
                int key_bits);

}  // namespace LLAMESH_OPS_CUDA
