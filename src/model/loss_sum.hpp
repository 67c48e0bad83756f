#pragma once

#include <array>
#include <cstddef>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::model {

/// Accumulator for token losses, on the host in double. Each loss counts to 2^-24 nats, so the sum
/// is exact up to 2^29 nats: equal to the bit on every device and mesh, in any order. On a GPU the
/// losses arrive while the next micro-batch runs. The host waits only in take(), and in add() once
/// it is eight micro-batches ahead, so that the progress it reports stays close to the GPU's.
class LossSum {
 public:
  /// Adds a micro-batch's losses (M) fp32, as produced by the work queued on `stream` so far. Later
  /// work may overwrite them.
  void add(device::Stream& stream, const Tensor& losses);
  /// Waits for everything added since the last take() and returns the sum.
  double sum();
  /// Like sum(), and begins a new sum.
  double take();

 private:
  /// Losses in transit from a GPU.
  struct Arrival {
    device::Buffer host = {};
    std::size_t count = 0;  ///< 0: nothing in transit
    device::Event done = {};
  };
  void finish(Arrival& arrival);

  double sum_ = 0;
  std::array<Arrival, 8> arrivals_;
  std::size_t next_ = 0;  ///< the oldest one
};

}  // namespace llamesh::model
