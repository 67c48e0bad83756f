#include "model/column_blocks.hpp"

#include "ops/ops.hpp"

namespace llamesh::model {
namespace {

Accumulate all_but_first(std::size_t i, Accumulate first) {
  return i == 0 ? first : Accumulate::yes;
}

/// Returns the part of w (O, I) between block `out` of a matrix (M, O) and block `in` of a matrix
/// (M, I).
Tensor between(const Tensor& w, const ColumnBlocks& outputs, std::size_t out,
               const ColumnBlocks& inputs, std::size_t in) {
  const auto row = static_cast<std::int64_t>(out) * outputs.width();
  const auto column = static_cast<std::int64_t>(in) * inputs.width();
  return w.slice_rows(row, outputs.width()).slice_cols(column, inputs.width());
}

void check(const Tensor& w, const ColumnBlocks& outputs, const ColumnBlocks& inputs) {
  expects(
      w.rows() == outputs.count() * outputs.width() && w.cols() == inputs.count() * inputs.width(),
      "a weight ({}, {}) for {} x {} outputs and {} x {} inputs", w.rows(), w.cols(),
      outputs.count(), outputs.width(), inputs.count(), inputs.width());
}

}  // namespace

ColumnBlocks ColumnBlocks::slice_rows(std::int64_t first, std::int64_t rows) const {
  ColumnBlocks slice = *this;
  for (auto& block : slice.blocks) block = block.slice_rows(first, rows);
  return slice;
}

void linear(device::Stream& stream, const ColumnBlocks& y, const ColumnBlocks& x, const Tensor& w,
            Accumulate accumulate) {
  check(w, y, x);
  for (std::size_t o = 0; o < y.blocks.size(); ++o)
    for (std::size_t i = 0; i < x.blocks.size(); ++i)
      ops::linear(stream, y.blocks[o], x.blocks[i], between(w, y, o, x, i),
                  all_but_first(i, accumulate));
}

void linear_backward_input(device::Stream& stream, const ColumnBlocks& dx, const ColumnBlocks& dy,
                           const Tensor& w, Accumulate accumulate) {
  check(w, dy, dx);
  for (std::size_t i = 0; i < dx.blocks.size(); ++i)
    for (std::size_t o = 0; o < dy.blocks.size(); ++o)
      ops::linear_backward_input(stream, dx.blocks[i], dy.blocks[o], between(w, dy, o, dx, i),
                                 all_but_first(o, accumulate));
}

void linear_backward_weight(device::Stream& stream, const Tensor& dw, const ColumnBlocks& dy,
                            const ColumnBlocks& x, Accumulate accumulate) {
  check(dw, dy, x);
  for (std::size_t o = 0; o < dy.blocks.size(); ++o)
    for (std::size_t i = 0; i < x.blocks.size(); ++i)
      ops::linear_backward_weight(stream, between(dw, dy, o, x, i), dy.blocks[o], x.blocks[i],
                                  accumulate);
}

}  // namespace llamesh::model
