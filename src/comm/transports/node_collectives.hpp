#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "comm/diagnosis/fingerprint_check.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/transports/collectives.hpp"
#include "comm/transports/pairwise_exchange.hpp"
#include "comm/transports/shared_window.hpp"

namespace llamesh::comm {

/// Collectives between ranks on one node, by loads and stores in MPI shared-memory windows. A
/// gathered buffer is a single copy that all ranks see, so gathering in place is just a barrier;
/// sums read the peers' symmetric buffers in place. If any rank passes other memory, MPI
/// point-to-point is used.
///
/// A window is freed once this object and every buffer in it are destroyed, or by free_symmetric().
/// That is collective, so all ranks must destroy them in the same order.
class NodeCollectives final : public Collectives {
 public:
  /// Collective; all ranks in `group` share memory. Keeps two duplicates of the group: for the
  /// calling thread (allocations) and for the stream's worker.
  explicit NodeCollectives(const Communicator& group);
  ~NodeCollectives() override;
  NodeCollectives(const NodeCollectives&) = delete;
  NodeCollectives& operator=(const NodeCollectives&) = delete;

  device::Buffer allocate_gathered(std::int64_t bytes_per_rank) override;
  bool shares_gathered() const override { return true; }
  device::Buffer allocate_symmetric(std::int64_t bytes) override;
  void free_symmetric(device::Buffer buffer) override;

 private:
  enum class Kind : std::uint8_t { gathered, symmetric };
  struct Region {
    std::shared_ptr<SharedWindow> window;  ///< null: freed
    Kind kind;
  };
  /// A rank's tensor as other ranks find it, exchanged at the start of a collective.
  struct alignas(64) TensorLocation {
    std::int64_t region = -1;       ///< index into regions_; -1: in no window
    std::int64_t offset = 0;        ///< bytes from the window's start
    bool written = false;           ///< all_gather: this rank's range is already written
    bool empty = false;             ///< sends nothing: the region does not matter
    std::uint64_t fingerprint = 0;  ///< CollectiveCall's
  };
  struct Control;

  TensorLocation locate(const Tensor& tensor) const;
  std::shared_ptr<SharedWindow> add_region(Kind kind, std::int64_t bytes);

  void barrier();
  /// Exchanges the ranks' tensor locations; a barrier. Throws like FingerprintCheck.
  std::vector<TensorLocation> exchange_locations(const CollectiveCall& call,
                                                 const TensorLocation& mine);
  /// Returns the addresses of all ranks' tensors if all are in windows of this kind, else none.
  std::vector<std::byte*> addresses(std::span<const TensorLocation> locations, Kind kind) const;

  void move_all_gather(const CollectiveCall& call, const Tensor& whole,
                       const Tensor& mine) override;
  void move_reduce_scatter(const CollectiveCall& call, const Tensor& mine, const Tensor& parts,
                           Accumulate accumulate) override;
  void move_all_reduce(const CollectiveCall& call, const Tensor& sum, const Tensor& data) override;
  void move_broadcast(const CollectiveCall& call, const Tensor& data) override;
  void move_parts(const CollectiveCall& call, const PeerParts& received,
                  const PeerParts& sent) override;

  Communicator group_;
  PairwiseExchange messages_;
  SharedWindow control_window_;
  Control* control_;
  std::int64_t calls_ = 0;              // made by the worker
  FingerprintCheck fingerprint_check_;  // used by the worker
  mutable std::mutex mutex_;  // the calling thread adds regions while the worker reads them
  std::vector<Region> regions_;
};

}  // namespace llamesh::comm
