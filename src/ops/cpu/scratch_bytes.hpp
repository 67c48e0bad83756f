#pragma once

#include <cstdint>

#include "ops/calls.hpp"

/// Scratch bytes for the kernels in a training step. The kernels size their Scratch with these too,
/// and the simulated backend counts them for a CPU. gemm_scratch() is in gemm.hpp.
namespace llamesh::ops::cpu {

/// Return the bytes for all threads that have a task.
std::int64_t attention_scratch(const AttentionShape& shape, std::int64_t threads);
std::int64_t attention_backward_scratch(const AttentionShape& shape, std::int64_t threads);

/// Returns the bytes of matvec(): its row in fp32.
inline std::int64_t matvec_scratch(const Tensor& x) {
  return x.dtype() == DType::f32 ? 0 : x.cols() * static_cast<std::int64_t>(sizeof(float));
}

/// Returns the bytes of an FP8 operand in the product's dtype.
inline std::int64_t dequantized_scratch(const Tensor& values, DType dtype) {
  return values.numel() * size_of(dtype);
}

/// Returns the rows per block of a norm's backward pass, each block summing its part of dw: at
/// least 16 rows, at most 64 blocks.
inline std::int64_t norm_backward_block(std::int64_t rows) {
  constexpr std::int64_t max_blocks = 64;
  const auto block = (rows + max_blocks - 1) / max_blocks;
  return block < 16 ? 16 : block;
}
/// `cols`: elements of all parameters.
inline std::int64_t norm_backward_scratch(std::int64_t rows, std::int64_t cols) {
  const auto block = norm_backward_block(rows);
  return (rows + block - 1) / block * cols * static_cast<std::int64_t>(sizeof(float));
}

/// Returns the bytes for a table with `rows` rows: the sorted tokens, and each row's start.
inline std::int64_t embedding_backward_scratch(std::int64_t tokens, std::int64_t rows) {
  return (tokens + rows + 2) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

/// Elements that a reduction to a scalar turns into one partial result.
inline constexpr std::int64_t reduction_block = 32768;
template <class Partial>
std::int64_t reduction_scratch(std::int64_t numel) {
  return (numel + reduction_block - 1) / reduction_block *
         static_cast<std::int64_t>(sizeof(Partial));
}

}  // namespace llamesh::ops::cpu
