#pragma once

#include <array>
#include <cstddef>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::model {

/// Sums token losses of micro-batches on the host, in double, each micro-batch from its first token
/// on and then the micro-batches in their order: the same bits on every device. On a GPU the losses
/// arrive while it goes on to the next micro-batch, so the host waits for it in take() only, and in
/// add() where it is eight micro-batches ahead: then what the host reports as progress is not far
/// from that of the GPU.
class LossSum {
 public:
  /// The losses (M) fp32 of a micro-batch, once the work in `stream` so far has made them; work put
  /// in afterwards may overwrite them.
  void add(device::Stream& stream, const Tensor& losses);
  /// The sum of all that was added since the last call, which it waits for.
  double take();

 private:
  /// The losses of a micro-batch on their way from a GPU.
  struct Arrival {
    device::Buffer host = {};
    std::size_t count = 0;  ///< 0: none is on its way
    device::Event done = {};
  };
  void finish(Arrival& arrival);

  double sum_ = 0;
  std::array<Arrival, 8> arrivals_;
  std::size_t next_ = 0;  ///< the oldest one
};

}  // namespace llamesh::model
