#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/accumulate.hpp"
#include "core/tensor.hpp"

/// The casts and sums of the collectives on the host, fp32 and bf16, one thread (the worker of a
/// stream). Dense
/// tensors of equal numel.
namespace llamesh::comm {

/// to = from, cast to to's dtype. Nothing happens where they are the same memory.
void copy_cast(const Tensor& to, const Tensor& from);

/// sum (fp32) = or += addend. They may be the same memory when nothing is accumulated.
void add_to(const Tensor& sum, const Tensor& addend, Accumulate accumulate);

/// out (count, fp32) = or += the sum of `parts`, each `count` elements of `dtype`, in their order.
/// A part may be `out`. Block by block, so that the sum stays in cache.
void sum_parts(float* out, std::span<const std::byte* const> parts, DType dtype, std::int64_t count,
               Accumulate accumulate);

}  // namespace llamesh::comm
