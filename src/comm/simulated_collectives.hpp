#pragma once

#include <memory>
#include <string_view>

#include "comm/collective_log.hpp"
#include "comm/collectives.hpp"

namespace llamesh::comm {

/// Collectives that take time and count what they would send, and move nothing: on the hardware of
/// the current device::Simulation. Memory is that of NodeCollectives and MpiCollectives where the
/// hardware is a CPU node's, else that of NcclCollectives.
///
/// Time is that of NCCL's model of a ring (its src/graph/tuning.cc): latency x steps, of which
/// those between nodes take longer, + bytes sent / bandwidth of the slowest link that it crosses,
/// over which the bytes of one collective follow those of another.
class SimulatedCollectives final : public Collectives {
 public:
  /// The group's ranks are on `nodes` nodes, equally many on each; `within_node`: and so is every
  /// other group along the same axes, each on one. `log`, if any, gets what is called as the
  /// calls of its last group.
  SimulatedCollectives(int rank, int size, int nodes, bool within_node, CollectiveLog* log);
  /// From now on what is sent takes turns on the links with what the other one sends.
  void share_links_of(const SimulatedCollectives& other) { links_ = other.links_; }

  device::Buffer allocate_gathered(std::int64_t bytes_per_rank) override;
  bool shares_gathered() const override;
  device::Buffer allocate_symmetric(std::int64_t bytes) override;
  device::Event all_gather(Tensor whole, Tensor mine, device::Event after) override;
  device::Event reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                               device::Event after) override;
  device::Event all_reduce(Tensor data, device::Event after) override;
  device::Event broadcast(Tensor data, int root, device::Event after) override;

 private:
  /// Seconds to send bytes in steps to the next rank.
  struct Ring {
    double latency, transfer;
  };
  Ring ring(double bytes, int steps) const;
  /// `own`: seconds of what the rank does by itself.
  device::Event take(const device::Event& after, std::int64_t sent, double own, const Ring& ring);
  void note(std::string_view kind, DType dtype, std::int64_t numel, int root = 0);
  void need_scratch();

  int nodes_;
  bool on_cpu_;
  bool shares_memory_;                     ///< windows of NodeCollectives
  std::shared_ptr<device::Stream> links_;  ///< what is sent over them
  device::Buffer scratch_;
  CollectiveLog* log_;
  std::size_t group_;  ///< in the log
};

}  // namespace llamesh::comm
