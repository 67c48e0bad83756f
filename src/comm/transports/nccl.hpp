#pragma once

#include <memory>
#include <string>

#include "comm/mpi/communicator.hpp"
#include "comm/transports/collectives.hpp"

/// GPU side of this layer: nccl/*, or nccl_absent.cpp in a build without CUDA.
namespace llamesh::comm {

/// One NCCL communicator over all ranks, from which the mesh axes' communicators are split; none if
/// there is one rank.
class Nccl {
 public:
  /// Collective. Some ranks create an ncclUniqueId, MPI shares them. Throws if NCCL has not
  /// connected all ranks within two minutes, and half a minute for each thousand ranks. The process
  /// must have chosen its GPU.
  Nccl(const Communicator& world, SumOrder order);
  ~Nccl();
  Nccl(Nccl&&) noexcept;
  Nccl& operator=(Nccl&&) noexcept;

  /// Creates the collectives for the ranks in `group`, all of which pass the same `color`, unlike
  /// any other rank. NCCL's buffers for them are then allocated, and rank 0 logs how much they
  /// take. Collective over the world. `axis` is a name for messages.
  std::unique_ptr<Collectives> axis(const std::string& axis, const Communicator& group,
                                    int color) const;

  struct Connection;

 private:
  std::unique_ptr<Connection> world_;
  int world_ranks_ = 1, world_rank_ = 0;
  SumOrder order_;
};

/// Returns NCCL's version; empty in a build without it.
std::string nccl_version();

}  // namespace llamesh::comm
