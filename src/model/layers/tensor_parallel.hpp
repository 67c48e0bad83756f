#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "device/stream.hpp"

namespace llamesh::model {

/// Tensor parallelism as the model sees it (Shoeybi et al. 2019): a group of ranks that split each
/// layer's matrices. It gathers the input for a split matrix and reduces its output over the group.
/// The residual stream (M, D) is replicated, or split by rows (sequence parallelism, Korthikanti et
/// al. 2022) or by columns. sharding::MeshTensorParallel implements it over a mesh axis; OneRank is
/// a single rank with everything.
///
/// Calls run after the work already in the compute stream; work queued after waiting for the
/// returned event sees the result.
class TensorParallel {
 public:
  virtual ~TensorParallel() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;

  struct MatrixSize {
    std::int64_t rows, cols;
  };
  /// Returns this rank's part (M', D') of a residual stream with size `whole`.
  virtual MatrixSize residual(MatrixSize whole) const = 0;
  /// Returns true if ranks hold columns: a sum over a row then spans all ranks.
  virtual bool divides_columns() const = 0;

  struct Gathered {
    Tensor tensor;  ///< (M, D), valid until the call after the next
    device::Event ready;
  };
  /// Gathers the whole matrix; each rank contributes `mine` (M', D').
  virtual Gathered gather(Tensor mine) = 0;
  /// Returns the buffer (M, D) for this rank's partial sum, the input to reduce(mine).
  virtual Tensor partial(Tensor mine) = 0;
  /// mine (M', D') = this rank's part of the sum over all ranks' partial sums.
  virtual device::Event reduce(Tensor mine) = 0;
  /// all (size(), n) = each rank's `mine` (n), in rank order.
  virtual device::Event all_gather(Tensor all, Tensor mine) = 0;
};

/// A single rank that has everything: no communication, no copies.
class OneRank final : public TensorParallel {
 public:
  int size() const override { return 1; }
  int rank() const override { return 0; }
  MatrixSize residual(MatrixSize whole) const override { return whole; }
  bool divides_columns() const override { return false; }
  Gathered gather(Tensor mine) override { return {mine, {}}; }
  Tensor partial(Tensor mine) override { return mine; }
  device::Event reduce(Tensor /*mine*/) override { return {}; }
  device::Event all_gather(Tensor /*all*/, Tensor /*mine*/) override { return {}; }
};

inline OneRank& one_rank() {
  static OneRank instance;
  return instance;
}

/// Returns the matrix (M, D) gathered from each rank's `mine`; later work in `stream` sees it.
inline Tensor gathered(device::Stream& stream, TensorParallel& ranks, Tensor mine) {
  auto [tensor, ready] = ranks.gather(mine);
  stream.wait(ready);
  return tensor;
}

}  // namespace llamesh::model
