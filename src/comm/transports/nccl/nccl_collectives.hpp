#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "comm/transports/collectives.hpp"
#include "comm/transports/nccl/connection.hpp"
#include "comm/transports/pairwise_exchange.hpp"

namespace llamesh::comm {

/// GPU collectives over NCCL, which rounds bf16 sums to bf16 at each hop; fp32 sums stay fp32. With
/// SumOrder::fastest, NCCL's algorithm decides the order: the same from run to run on the same
/// machine, unless NCCL_NVLS_ENABLE=2 lets NVLink switches do the sums. With SumOrder::tree, ranks
/// exchange parts and add them up, which takes scratch: half the largest tensor that is reduced.
/// Each rank's range in `whole` and `parts` starts at a multiple of 64 bytes.
class NcclCollectives final : public Collectives {
 public:
  /// `connection` is null for an axis with one rank.
  NcclCollectives(const Communicator& group, std::shared_ptr<Nccl::Connection> connection,
                  SumOrder order);
  ~NcclCollectives() override;

  device::Buffer allocate_gathered(std::int64_t bytes_per_rank) override;
  device::Buffer allocate_symmetric(std::int64_t bytes) override;
  void connect_pairs() override;
  bool healthy() override { return !connection_ || connection_->healthy(); }

 private:
  void move_all_gather(const CollectiveCall& call, const Tensor& whole,
                       const Tensor& mine) override;
  void move_reduce_scatter(const CollectiveCall& call, const Tensor& mine, const Tensor& parts,
                           Accumulate accumulate) override;
  void move_all_reduce(const CollectiveCall& call, const Tensor& sum, const Tensor& data) override;
  void move_broadcast(const CollectiveCall& call, const Tensor& data) override;
  void move_parts(const CollectiveCall& call, const PeerParts& received,
                  const PeerParts& sent) override;

  /// Calls NCCL unless this rank is alone.
  template <class Call>
  void call(const char* name, const Call& call);
  /// Returns the range for a rank in a tensor that is reduced.
  using Part = std::function<Tensor(int rank)>;
  void sum_as_tree(const Part& part);
  void gather(const Part& part);
  void exchange(const char* name, int peer, std::span<const Tensor> sent,
                std::span<const Tensor> received);
  void exchange_with_all(const char* name, const PeerParts& received, const PeerParts& sent);
  std::byte* scratch(std::int64_t bytes);

  std::shared_ptr<Nccl::Connection> connection_;
  SumOrder order_;
  device::Buffer scratch_;
  bool has_pairs_ = false;   ///< connected
  PairwiseExchange checks_;  ///< compares sizes on the host, with keep_fingerprint()
};

}  // namespace llamesh::comm
