#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/column_blocks.hpp"

namespace llamesh::model {

/// The ranks among which the matrices of every layer are cut (tensor parallelism, Shoeybi et al.
/// 2019), as the model sees them: it brings the input of a cut matrix together and hands on its
/// output, a sum over these ranks. The residual stream (M, D) is whole on each rank, or cut among
/// them by rows (sequence parallelism, Korthikanti et al. 2022) or by columns.
/// sharding::MeshTensorParallel does it over a mesh axis; OneRank is a rank that has all.
///
/// Calls follow the work that is in the compute stream; work put in after waiting for the event
/// finds the result.
class TensorParallel {
 public:
  virtual ~TensorParallel() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;

  struct MatrixSize {
    std::int64_t rows, cols;
  };
  /// What this rank holds (M', D') of a residual stream of this size.
  virtual MatrixSize residual(MatrixSize whole) const = 0;
  /// Whether it holds columns: a sum over a row is one over all ranks.
  virtual bool divides_columns() const = 0;

  struct Gathered {
    ColumnBlocks tensor;  ///< (M, D), valid until the next call but one
    device::Event ready;
  };
  /// The whole matrix, of which each rank has `mine` (M', D').
  virtual Gathered gather(Tensor mine) = 0;
  /// Where this rank writes its summand (M, D) of what reduce(mine) sums up.
  virtual ColumnBlocks partial(Tensor mine) = 0;
  /// mine (M', D') = this rank's part of the sum of all ranks' summands.
  virtual device::Event reduce(Tensor mine) = 0;
  /// all (size(), n) = each rank's `mine` (n), in rank order.
  virtual device::Event all_gather(Tensor all, Tensor mine) = 0;
};

/// One rank that has all: nothing moves and nothing is copied.
class OneRank final : public TensorParallel {
 public:
  int size() const override { return 1; }
  int rank() const override { return 0; }
  MatrixSize residual(MatrixSize whole) const override { return whole; }
  bool divides_columns() const override { return false; }
  Gathered gather(Tensor mine) override { return {mine, {}}; }
  ColumnBlocks partial(Tensor mine) override { return mine; }
  device::Event reduce(Tensor /*mine*/) override { return {}; }
  device::Event all_gather(Tensor /*all*/, Tensor /*mine*/) override { return {}; }
};

inline OneRank& one_rank() {
  static OneRank instance;
  return instance;
}

/// The matrix (M, D) of which each rank has `mine`; work put into `stream` after this finds it.
inline ColumnBlocks gathered(device::Stream& stream, TensorParallel& ranks, Tensor mine) {
  auto [tensor, ready] = ranks.gather(mine);
  stream.wait(ready);
  return tensor;
}

}  // namespace llamesh::model
