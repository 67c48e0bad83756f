#pragma once

#include "comm/collectives.hpp"
#include "comm/pairwise_exchange.hpp"
#include "comm/same_call.hpp"

namespace llamesh::comm {

/// Collectives over MPI point-to-point, for an axis that crosses nodes. Buffers are ordinary
/// memory. With contracts on, the ranks compare each call before it runs, in an extra small
/// collective.
class MpiCollectives final : public Collectives {
 public:
  /// Collective over `group`.
  explicit MpiCollectives(const Communicator& group);
  ~MpiCollectives() override;

  device::Buffer allocate_gathered(std::int64_t bytes_per_rank) override;
  device::Buffer allocate_symmetric(std::int64_t bytes) override;
  device::Event all_gather(Tensor whole, Tensor mine, device::Event after) override;
  device::Event reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                               device::Event after) override;
  device::Event all_reduce(Tensor data, device::Event after) override;
  device::Event broadcast(Tensor data, int root, device::Event after) override;

 private:
  CallImage image(const char* kind, const Tensor& whole) const;
  void compare(const CallImage& call);

  PairwiseExchange exchange_;  ///< used only by the stream's worker
  SameCalls same_calls_;       ///< likewise
};

}  // namespace llamesh::comm
