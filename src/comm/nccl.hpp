#pragma once

#include <memory>
#include <string>

#include "comm/collectives.hpp"
#include "comm/communicator.hpp"

/// The GPU side of this layer: nccl/*, or nccl_absent.cpp in a build without CUDA.
namespace llamesh::comm {

/// One NCCL communicator over all ranks, from which those of the mesh axes are split; none where
/// there is one rank.
class Nccl {
 public:
  /// Collective. Rank 0 creates the ncclUniqueId, MPI broadcasts it. Throws when NCCL has not
  /// connected all ranks within two minutes. The process has chosen its GPU.
  explicit Nccl(const Communicator& world);
  ~Nccl();
  Nccl(Nccl&&) noexcept;
  Nccl& operator=(Nccl&&) noexcept;

  /// The collectives of the ranks of `group`, all of which pass the same `color`, unlike any other
  /// rank. Collective over the world. `axis` is a name for messages.
  std::unique_ptr<Collectives> axis(const std::string& axis, const Communicator& group,
                                    int color) const;

  struct Connection;

 private:
  std::unique_ptr<Connection> world_;
};

/// NCCL's version as text; empty in a build without it.
std::string nccl_version();

}  // namespace llamesh::comm
