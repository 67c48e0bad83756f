#pragma once

#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::device {

/// A place for numbers that the host makes and kernels read: its own memory on the CPU, a copy on a
/// GPU.
class Staging {
 public:
  /// The numbers of a dense tensor of the host where kernels of `stream` can read them: the tensor
  /// itself on the CPU; on a GPU a copy, which holds until the next call.
  Tensor reachable(Stream& stream, const Tensor& host);

 private:
  Buffer room_;  // of a GPU
};

}  // namespace llamesh::device
