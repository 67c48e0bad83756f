#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "comm/calls/collective_call.hpp"
#include "comm/transports/collectives.hpp"
#include "comm/transports/shared_time.hpp"

namespace llamesh::comm {

/// Collectives that take time and count the bytes they would send, but move nothing, on the current
/// device::Simulation's hardware. They use memory like NodeCollectives and MpiCollectives on CPU
/// nodes, else like NcclCollectives.
///
/// Time follows NCCL's ring model (its src/graph/tuning.cc): latency x steps, where steps between
/// nodes take longer, + bytes sent / bandwidth of the slowest link crossed. With SumOrder::tree,
/// sums on GPUs take their steps one after the other, each by its link. Collectives that share
/// a link take turns on it. In all_to_all and send_recv, a rank sends to (and receives from) one
/// peer after the other, each at the bandwidth of its link.
///
/// Measured collectives on CPUs (device::MeasuredRates) delay the computation, because they use its
/// cores.
class SimulatedCollectives final : public Collectives {
 public:
  /// Callback that receives every call, and every allocation as a call.
  using Log = std::function<void(const CollectiveCall& call)>;

  /// The group's ranks are on `nodes` nodes, equally many on each. `within_node`: every group along
  /// the same axes lies on a single node. `log` may be empty.
  SimulatedCollectives(int rank, int size, int nodes, bool within_node, Log log,
                       SumOrder order = SumOrder::fastest);
  /// Shares the links with another object: their messages take turns from now on.
  void share_links_of(const SimulatedCollectives& other) { links_ = other.links_; }
  /// Waits in send_recv() for the other rank of a pair, which is simulated side by side. `time`
  /// outlives this object.
  void share_time(SharedTime& time, const SharedTime::Channel& channel) {
    time_ = &time;
    channel_ = channel;
  }

  device::Buffer allocate_gathered(std::int64_t bytes_per_rank) override;
  bool shares_gathered() const override;
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

  /// Seconds to send bytes around a ring, in steps to the next rank.
  struct Ring {
    double latency, transfer;
  };
  Ring ring(double bytes, int steps) const;
  /// Returns the bytes in a tensor of equal parts, without one part.
  double bytes_of_others(const Tensor& whole) const;
  /// Returns the measured seconds of a call, or nothing.
  std::optional<double> measured_seconds(const CollectiveCall& call) const;
  /// Takes the time of a call and logs it; `own`: seconds for the rank's local work.
  void take(const CollectiveCall& call, double own, const Ring& ring);
  void log(const CollectiveCall& call) const;
  void need_scratch(const Tensor& parts);
  bool sums_as_tree() const { return !on_cpu_ && order_ == SumOrder::tree && size() > 1; }
  void reduce_as_tree(const CollectiveCall& call, const Tensor& parts, double own, bool gathers);

  int nodes_;
  SumOrder order_;
  bool on_cpu_;
  bool shares_memory_;                     ///< uses NodeCollectives' windows
  std::shared_ptr<device::Stream> links_;  ///< timeline of the links
  device::Buffer scratch_;
  Log log_;
  SharedTime* time_ = nullptr;  ///< null: the others are as fast as this rank
  SharedTime::Channel channel_;
  std::size_t received_ = 0;  ///< messages, with time_
};

}  // namespace llamesh::comm
