#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.hpp"
#include "device/stream.hpp"
#include "model/layers/arena.hpp"
#include "ops/ops.hpp"

/// M tokens on this rank, each taken by k of N experts.
namespace llamesh::model {

/// The rows that a layer's tokens are for the experts, from one forward pass to its backward pass.
struct ExpertRows {
  ops::ExpertOrder order;  ///< this rank's M k rows, by expert
  std::int64_t count = 0;  ///< R: rows that this rank's experts take
  Tensor starts;           ///< (N' + 1) int32: the rows that each of this rank's N' experts takes

  // If ranks exchange rows:
  std::vector<std::int64_t> sent, received;                  ///< rows to and from each rank
  ops::ExpertOrder received_order;                           ///< received rows, by expert
  GrowingMemory memory{device::MemoryUse::expert_parallel};  ///< for starts and received_order
};

/// Expert parallelism as the model sees it (Lepikhin et al. 2020): a group of ranks that read
/// different tokens and hold different experts. It sends each token to the ranks that hold its
/// experts, and their outputs back. sharding::MeshExpertParallel implements it over a mesh axis;
/// OneRankOfExperts is a single rank with all experts.
///
/// Calls run after the work already in the compute stream, and later work there sees their results.
class ExpertParallel {
 public:
  virtual ~ExpertParallel() = default;
  virtual int size() const = 0;
  /// Sets everything in `rows` from its order. Collective. If there are several ranks, the host
  /// waits for their counts.
  virtual void exchange_counts(ExpertRows& rows) = 0;
  /// to (R, C) = the rows of x that this rank's experts take, from all ranks, by expert. x is (M,
  /// C), or (M k, C) with a row for each slot. Collective.
  virtual void dispatch(const ExpertRows& rows, Tensor to, Tensor x) = 0;
  /// Returns (M k, C) in rows.order: the rows for this rank's tokens in all ranks' `from` (R, C).
  /// Valid until the next call. Collective.
  virtual Tensor collect(const ExpertRows& rows, Tensor from) = 0;
};

/// A single rank with all experts: no communication, and no copies but the dispatch.
class OneRankOfExperts final : public ExpertParallel {
 public:
  int size() const override { return 1; }
  void exchange_counts(ExpertRows& rows) override {
    rows.count = rows.order.slots.numel();
    rows.starts = rows.order.starts;
  }
  void dispatch(const ExpertRows& rows, Tensor to, Tensor x) override {
    ops::dispatch_tokens(device::compute_stream(), to, x, rows.order.slots);
  }
  Tensor collect(const ExpertRows& /*rows*/, Tensor from) override { return from; }
};

inline OneRankOfExperts& one_rank_of_experts() {
  static OneRankOfExperts instance;
  return instance;
}

}  // namespace llamesh::model
