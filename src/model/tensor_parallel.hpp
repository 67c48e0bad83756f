#pragma once

#include <cstdint>

#include "core/tensor.hpp"
#include "device/stream.hpp"

namespace llamesh::model {

/// The ranks among which the matrices of every layer are cut (tensor parallelism, Shoeybi et al.
/// 2019), as the model sees them: it brings the input of a cut matrix together and hands on its
/// output, a sum over these ranks. The residual stream (M, D) is whole on each rank, or cut by rows
/// among them (sequence parallelism, Korthikanti et al. 2022). sharding::MeshTensorParallel does it
/// over a mesh axis; OneRank is a rank that has all.
///
/// Calls follow the work that is in the compute stream; work put in after waiting for the event
/// finds the result.
class TensorParallel {
 public:
  virtual ~TensorParallel() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  /// How many of `rows` rows of the residual stream this rank holds.
  virtual std::int64_t residual_rows(std::int64_t rows) const = 0;

  struct Gathered {
    Tensor tensor;  ///< (M, D), valid until the next call but one
    device::Event ready;
  };
  /// All rows, of which each rank has `mine` (residual_rows(M), D).
  virtual Gathered gather(Tensor mine) = 0;
  /// Where this rank writes its summand (M, D) of what reduce(mine) sums up.
  virtual Tensor summand(Tensor mine) = 0;
  /// mine (residual_rows(M), D) = these rows of the sum of all ranks' summands.
  virtual device::Event reduce(Tensor mine) = 0;
  /// all (size(), n) = each rank's `mine` (n), in rank order.
  virtual device::Event all_gather(Tensor all, Tensor mine) = 0;
};

/// One rank that has all: nothing moves and nothing is copied.
class OneRank final : public TensorParallel {
 public:
  int size() const override { return 1; }
  int rank() const override { return 0; }
  std::int64_t residual_rows(std::int64_t rows) const override { return rows; }
  Gathered gather(Tensor mine) override { return {mine, {}}; }
  Tensor summand(Tensor mine) override { return mine; }
  device::Event reduce(Tensor /*mine*/) override { return {}; }
  device::Event all_gather(Tensor /*all*/, Tensor /*mine*/) override { return {}; }
};

inline OneRank& one_rank() {
  static OneRank instance;
  return instance;
}

/// All rows (M, D) of which each rank has `mine`; work put into `stream` after this finds them.
inline Tensor gathered(device::Stream& stream, TensorParallel& ranks, Tensor mine) {
  const auto [tensor, ready] = ranks.gather(mine);
  stream.wait(ready);
  return tensor;
}

}  // namespace llamesh::model
