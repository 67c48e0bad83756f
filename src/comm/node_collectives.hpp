#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/communicator.hpp"
#include "comm/pairwise_exchange.hpp"
#include "comm/same_call.hpp"
#include "comm/shared_window.hpp"

namespace llamesh::comm {

/// Collectives of ranks that share a node, by loads and stores in MPI shared-memory windows:
/// gathered buffers are one copy that all ranks see, so gathering into them in place is a barrier;
/// sums read the peers' symmetric buffers in place. Where any rank passes other memory, MPI
/// point-to-point is used.
///
/// Windows are freed when this object and every buffer of them are destroyed; since that is
/// collective, all ranks destroy them in the same order.
class NodeCollectives final : public Collectives {
 public:
  /// Collective; all ranks of `group` share memory. Keeps two duplicates of it: for the calling
  /// thread (allocations) and for the stream's worker.
  explicit NodeCollectives(const Communicator& group);
  ~NodeCollectives() override;
  NodeCollectives(const NodeCollectives&) = delete;
  NodeCollectives& operator=(const NodeCollectives&) = delete;

  device::Buffer allocate_gathered(std::int64_t bytes_per_rank) override;
  bool shares_gathered() const override { return true; }
  device::Buffer allocate_symmetric(std::int64_t bytes) override;
  device::Event all_gather(Tensor whole, Tensor mine, device::Event after) override;
  device::Event reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                               device::Event after) override;
  device::Event all_reduce(Tensor data, device::Event after) override;
  device::Event broadcast(Tensor data, int root, device::Event after) override;

 private:
  enum class Kind : std::uint8_t { gathered, symmetric };
  struct Region {
    std::shared_ptr<SharedWindow> window;
    Kind kind;
  };
  /// A rank's tensor as the others find it, exchanged at the start of a collective.
  struct alignas(64) TensorLocation {
    std::int64_t region = -1;  ///< index into regions_; -1: in no window
    std::int64_t offset = 0;   ///< bytes from the start of the window
    bool written = false;      ///< all_gather: this rank's range of it is written already
    CallImage call = {};
  };
  struct Control;

  TensorLocation locate(const Tensor& tensor, const char* kind) const;
  std::shared_ptr<SharedWindow> add_region(Kind kind, std::int64_t bytes);

  void barrier();
  /// Exchanges the ranks' tensor locations; a barrier. Throws as SameCalls does.
  std::vector<TensorLocation> exchange_locations(const TensorLocation& mine);
  /// The addresses of all ranks' tensors when they are all in windows of this kind, else none.
  std::vector<std::byte*> addresses(std::span<const TensorLocation> locations, Kind kind) const;

  void gather_now(const Tensor& whole, const Tensor& mine, const TensorLocation& location);
  void reduce_scatter_now(const Tensor& mine, const Tensor& parts, Accumulate accumulate,
                          const TensorLocation& location);
  void all_reduce_now(const Tensor& data, const TensorLocation& location);
  void broadcast_now(const Tensor& data, int root, const TensorLocation& location);

  Communicator group_;
  PairwiseExchange messages_;
  SharedWindow control_window_;
  Control* control_;
  std::int64_t calls_ = 0;    // of the worker
  SameCalls same_calls_;      // the worker's
  mutable std::mutex mutex_;  // the calling thread adds regions while the worker reads them
  std::vector<Region> regions_;
};

}  // namespace llamesh::comm
