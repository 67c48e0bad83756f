#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/accumulate.hpp"
#include "core/tensor.hpp"
#include "device/stream.hpp"

namespace llamesh::model {

/// A matrix (M, N) as equal blocks of its columns, each a matrix (M, N / blocks) of its own: a
/// plain matrix is one block, and what was gathered from ranks that have columns of it one of each
/// rank.
struct ColumnBlocks {
  std::vector<Tensor> blocks;

  ColumnBlocks(const Tensor& matrix) : blocks{matrix} {}
  explicit ColumnBlocks(std::vector<Tensor> of_matrix) : blocks(std::move(of_matrix)) {}

  /// Columns of each block.
  std::int64_t width() const { return blocks.front().cols(); }
  std::int64_t count() const { return std::ssize(blocks); }
  ColumnBlocks slice_rows(std::int64_t first, std::int64_t rows) const;
};

// The products of ops.hpp with matrices in blocks of columns. Of a product over such a matrix each
// block is a summand, added in this order and rounded to the dtype of the result in between.

/// y (M, O) = or += x (M, I) w^T, w (O, I).
void linear(device::Stream& stream, const ColumnBlocks& y, const ColumnBlocks& x, const Tensor& w,
            Accumulate accumulate);
/// dx (M, I) = or += dy (M, O) w.
void linear_backward_input(device::Stream& stream, const ColumnBlocks& dx, const ColumnBlocks& dy,
                           const Tensor& w, Accumulate accumulate);
/// dw (O, I) = or += dy^T x.
void linear_backward_weight(device::Stream& stream, const Tensor& dw, const ColumnBlocks& dy,
                            const ColumnBlocks& x, Accumulate accumulate);

}  // namespace llamesh::model
