#pragma once

#include <cstdint>

#include "ops/calls.hpp"

/// Bytes of Scratch that the kernels of a training step need, which take them from here too: what
/// the simulated backend counts for a CPU. gemm_scratch() is in gemm.hpp.
namespace llamesh::ops::cpu {

/// Of each thread.
std::int64_t attention_scratch(const AttentionShape& shape);
std::int64_t attention_backward_scratch(const AttentionShape& shape);

/// Of matvec(): its row in fp32.
inline std::int64_t matvec_scratch(const Tensor& x) {
  return x.dtype() == DType::f32 ? 0 : x.cols() * static_cast<std::int64_t>(sizeof(float));
}

/// Blocks of rows, each of which sums its part of dw: 16 rows at least, and 64 blocks at most.
inline std::int64_t rms_norm_backward_block(std::int64_t rows) {
  constexpr std::int64_t most_blocks = 64;
  const auto block = (rows + most_blocks - 1) / most_blocks;
  return block < 16 ? 16 : block;
}
inline std::int64_t rms_norm_backward_scratch(std::int64_t rows, std::int64_t cols) {
  const auto block = rms_norm_backward_block(rows);
  return (rows + block - 1) / block * cols * static_cast<std::int64_t>(sizeof(float));
}

/// Of a table of `rows` rows: the tokens in order, and where each row's begin.
inline std::int64_t embedding_backward_scratch(std::int64_t tokens, std::int64_t rows) {
  return (tokens + rows + 2) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

/// Elements of which sum_of_squares() makes one number.
inline constexpr std::int64_t squares_block = 32768;
inline std::int64_t sum_of_squares_scratch(std::int64_t numel) {
  return (numel + squares_block - 1) / squares_block * static_cast<std::int64_t>(sizeof(double));
}

}  // namespace llamesh::ops::cpu
