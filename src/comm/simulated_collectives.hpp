#pragma once

#include <memory>
#include <string_view>

#include "comm/collective_log.hpp"
#include "comm/collectives.hpp"

namespace llamesh::comm {

/// Collectives that take time and count the bytes they would send, but move nothing, on the current
/// device::Simulation's hardware. They use memory like NodeCollectives and MpiCollectives on CPU
/// nodes, else like NcclCollectives.
///
/// Time follows NCCL's ring model (its src/graph/tuning.cc): latency x steps, where steps between
/// nodes take longer, + bytes sent / bandwidth of the slowest link crossed. Collectives that share
/// a link take turns on it.
class SimulatedCollectives final : public Collectives {
 public:
  /// The group's ranks are on `nodes` nodes, equally many on each. `within_node`: every group along
  /// the same axes lies on a single node. `log`, if any, receives the calls in its last group.
  SimulatedCollectives(int rank, int size, int nodes, bool within_node, CollectiveLog* log);
  /// Shares the links with another object: their messages take turns from now on.
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
  /// Seconds to send bytes around a ring, in steps to the next rank.
  struct Ring {
    double latency, transfer;
  };
  Ring ring(double bytes, int steps) const;
  /// `own`: seconds for the rank's local work.
  device::Event take(const device::Event& after, std::int64_t sent, double own, const Ring& ring);
  void note(std::string_view kind, DType dtype, std::int64_t numel, int root = 0);
  void need_scratch();

  int nodes_;
  bool on_cpu_;
  bool shares_memory_;                     ///< uses NodeCollectives' windows
  std::shared_ptr<device::Stream> links_;  ///< timeline of the links
  device::Buffer scratch_;
  CollectiveLog* log_;
  std::size_t group_;  ///< index in the log
};

}  // namespace llamesh::comm
