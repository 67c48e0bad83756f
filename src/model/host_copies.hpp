#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::model {

/// Small results of micro-batches on their way to the host. On a GPU they arrive while the next
/// micro-batch runs. The host waits only in finish(), and in add() once it is eight micro-batches
/// ahead, so that the progress it reports stays close to the GPU's.
class HostCopies {
 public:
  /// `take` gets what has arrived, in the order of add().
  explicit HostCopies(std::function<void(std::span<const float>)> take) : take_(std::move(take)) {}

  /// Adds a dense fp32 tensor, as produced by the work queued on `stream` so far. Later work may
  /// overwrite it.
  void add(device::Stream& stream, const Tensor& values);
  /// Waits for everything added so far.
  void finish();

 private:
  /// Values in transit from a GPU.
  struct Arrival {
    device::Buffer host = {};
    std::size_t count = 0;  ///< 0: nothing in transit
    device::Event done = {};
  };
  void finish(Arrival& arrival);

  std::function<void(std::span<const float>)> take_;
  std::array<Arrival, 8> arrivals_;
  std::size_t next_ = 0;  ///< the oldest one
};

}  // namespace llamesh::model
