#pragma once

#include "comm/diagnosis/fingerprint_check.hpp"
#include "comm/transports/collectives.hpp"
#include "comm/transports/pairwise_exchange.hpp"

namespace llamesh::comm {

/// Collectives over MPI point-to-point, for an axis that crosses nodes. Buffers are ordinary
/// memory. With debug.contract, the ranks compare each call before it runs, in an extra small
/// collective.
class MpiCollectives final : public Collectives {
 public:
  /// Collective over `group`.
  explicit MpiCollectives(const Communicator& group);
  ~MpiCollectives() override;

  device::Buffer allocate_gathered(std::int64_t bytes_per_rank) override;
  device::Buffer allocate_symmetric(std::int64_t bytes) override;

 private:
  void move_all_gather(const CollectiveCall& call, const Tensor& whole,
                       const Tensor& mine) override;
  void move_reduce_scatter(const CollectiveCall& call, const Tensor& mine, const Tensor& parts,
                           Accumulate accumulate) override;
  void move_all_reduce(const CollectiveCall& call, const Tensor& sum, const Tensor& data) override;
  void move_broadcast(const CollectiveCall& call, const Tensor& data) override;
  void move_parts(const CollectiveCall& call, const PeerParts& received,
                  const PeerParts& sent) override;
  void compare(const CollectiveCall& call);

  PairwiseExchange exchange_;           ///< used only by the stream's worker
  FingerprintCheck fingerprint_check_;  ///< likewise
};

}  // namespace llamesh::comm
