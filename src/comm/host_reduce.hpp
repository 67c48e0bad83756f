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

/// out = or += the sum in fp32 of `parts`, each as many elements of `dtype`, in their order. A part
/// may be `out`. Block by block, so that the sum stays in cache.
void sum_parts(const Tensor& out, std::span<const std::byte* const> parts, DType dtype,
               Accumulate accumulate);

}  // namespace llamesh::comm
