#pragma once

#include "core/hash.hpp"
#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::train {

/// Hasher of tensors' bits on any device. It copies a GPU's tensors to the host in pieces.
class TensorHasher {
 public:
  static constexpr std::int64_t piece_bytes = 8 << 20;

  /// Adds the tensor's bytes to `hash`. Waits for the work queued on `stream`.
  void add(RunningHash& hash, device::Stream& stream, const Tensor& tensor);

 private:
  device::Buffer piece_;
};

}  // namespace llamesh::train
