#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/tensor.hpp"

/// Casts and sums for host collectives, in fp32 and bf16, on one thread (a stream's worker).
/// Tensors are dense, with equal numel.
namespace llamesh::comm {

/// Elements that one rank sums in an all-reduce.
struct Slice {
  std::int64_t first;
  std::int64_t count;
};
/// Returns slice `rank` if `numel` elements are split into `size` equal slices of whole cache
/// lines; the last ones may be short or empty.
Slice slice_of(std::int64_t numel, int rank, int size);

/// Copies `from` to `to`, cast to its dtype. Does nothing if they are the same memory.
void copy_cast(const Tensor& to, const Tensor& from);

/// Sets or adds `addend` to sum (fp32). They may be the same memory when not accumulating.
void add_to(const Tensor& sum, const Tensor& addend, Accumulate accumulate);

/// Sets or adds to `out` the fp32 sum of `parts` (arrays of `dtype`, as long as `out`): that of the
/// balanced binary tree over their order, ((p0 + p1) + (p2 + p3)) + ..., which any division of the
/// parts into aligned powers of two can follow (docs/reproducibility.md). A part may be `out`.
/// Works block by block, so that the sums stay in cache.
void sum_parts(const Tensor& out, std::span<const std::byte* const> parts, DType dtype,
               Accumulate accumulate);

}  // namespace llamesh::comm
