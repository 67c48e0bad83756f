#pragma once

#include "model/host_copies.hpp"

namespace llamesh::model {

/// Accumulator for losses, on the host in double. Each loss counts to 2^-24 nats, so the sum is
/// exact up to 2^29 nats: equal to the bit on every device and mesh, in any order.
class LossSum {
 public:
  /// Adds a micro-batch's losses, dense fp32 (HostCopies::add).
  void add(device::Stream& stream, const Tensor& losses) { arrivals_.add(stream, losses); }
  /// Waits for everything added since the last take() and returns the sum.
  double sum();
  /// Like sum(), and begins a new sum.
  double take();

 private:
  double sum_ = 0;
  HostCopies arrivals_{[this](std::span<const float> losses) { add(losses); }};

  void add(std::span<const float> losses);
};

}  // namespace llamesh::model
