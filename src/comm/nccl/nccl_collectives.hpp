#pragma once

#include <memory>

#include "comm/collectives.hpp"
#include "comm/nccl/connection.hpp"

namespace llamesh::comm {

/// GPU collectives over NCCL, which rounds bf16 sums to bf16 at each hop; fp32 sums stay fp32. The
/// summation order is that of NCCL's algorithm, the same from run to run on the same machine,
/// unless NCCL_NVLS_ENABLE=2 lets NVLink switches do the sums. Each rank's range in `whole` and
/// `parts` starts at a multiple of 64 bytes.
class NcclCollectives final : public Collectives {
 public:
  /// `connection` is null for an axis with one rank.
  NcclCollectives(const Communicator& group, std::shared_ptr<Nccl::Connection> connection);
  ~NcclCollectives() override;

  device::Buffer allocate_gathered(std::int64_t bytes_per_rank) override;
  device::Buffer allocate_symmetric(std::int64_t bytes) override;
  device::Event all_gather(Tensor whole, Tensor mine, device::Event after) override;
  device::Event reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                               device::Event after) override;
  device::Event all_reduce(Tensor data, device::Event after) override;
  device::Event broadcast(Tensor data, int root, device::Event after) override;
  bool healthy() override { return !connection_ || connection_->healthy(); }

 private:
  /// Calls NCCL unless this rank is alone.
  template <class Call>
  void call(const char* name, const Call& call);

  std::shared_ptr<Nccl::Connection> connection_;
};

}  // namespace llamesh::comm
