#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/accumulate.hpp"
#include "core/tensor.hpp"
#include "device/stream.hpp"

namespace llamesh::model {

/// A matrix (M, N) as equal column blocks, each a separate matrix (M, N / blocks). A plain matrix
/// is one block; a matrix gathered from ranks that hold its columns has one block per rank.
struct ColumnBlocks {
  std::vector<Tensor> blocks;

  ColumnBlocks(const Tensor& matrix) : blocks{matrix} {}
  explicit ColumnBlocks(std::vector<Tensor> of_matrix) : blocks(std::move(of_matrix)) {}

  /// Returns the columns per block.
  std::int64_t width() const { return blocks.front().cols(); }
  std::int64_t count() const { return std::ssize(blocks); }
  ColumnBlocks slice_rows(std::int64_t first, std::int64_t rows) const;
};

// Products from ops.hpp on column-blocked matrices. In a product over such a matrix, each block is
// a partial sum, added in this order and rounded to the result dtype in between.

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
