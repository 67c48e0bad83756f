#pragma once

#include "ops/cuda/kernels.hpp"
#include "ops/cuda/vectorized.cuh"

/// The gradients of a norm's parameters, from each block's part of them.
namespace LLAMESH_OPS_CUDA {

inline constexpr int partial_groups = 32;

/// dw = or += the column sums of partial (count, cols), with `stride` elements from row to row.
/// Each of 32 warps sums every 32nd row, then the first warp adds up the warps.
template <class W>
__global__ void __launch_bounds__(32 * partial_groups)
    sum_partials(W* dw, const float* partial, int count, int cols, int stride, bool accumulate) {
  auto* sums = dynamic_shared_memory<float>();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int col = blockIdx.x * 32 + lane;
  float total = 0;
  if (col < cols)
    for (int i = group; i < count; i += partial_groups)
      total += partial[static_cast<std::int64_t>(i) * stride + col];
  sums[group * 32 + lane] = total;
  __syncthreads();
  if (group > 0 || col >= cols) return;
  total = accumulate ? load_one(dw + col) : 0.0F;
  for (int g = 0; g < partial_groups; ++g) total += sums[g * 32 + lane];
  store_one(dw + col, total);
}

/// Queues it for `blocks` parts, unless dw is empty.
inline void add_partials(Stream& stream, const Tensor& dw, Accumulate accumulate,
                         const float* partial, std::int64_t blocks, std::int64_t stride) {
  if (!dw) return;
  with_type(dw.dtype(), [&]<class W>(std::type_identity<W>) {
    launch(&sum_partials<W>, {divide_up(dw.numel(), 32)}, 32 * partial_groups,
           32 * partial_groups * 4, stream, dw.as<W>(), partial, static_cast<int>(blocks),
           static_cast<int>(dw.numel()), static_cast<int>(stride), accumulate == Accumulate::yes);
  });
}

/// Rows per block of a norm's backward pass. The partition depends on the number of rows only: 4
/// blocks on each of 132 multiprocessors.
inline std::int64_t norm_rows_a_block(std::int64_t rows) {
  return divide_up(rows, 528);
}

}  // namespace LLAMESH_OPS_CUDA
