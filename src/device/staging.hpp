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
  /// The same without waiting for the stream's work: on a GPU by way of pinned memory, so that the
  /// host may go on and change the numbers while kernels still read those of the call before. It
  /// waits for the copy of the call before alone.
  Tensor reachable_soon(Stream& stream, const Tensor& host);

 private:
  Tensor room_for(Stream& stream, const Tensor& host);

  Buffer room_;  // of a GPU
  // For reachable_soon(): kernels that read room_ and the copy into it are in order by the stream;
  // what the host writes and that copy reads is in order by the event.
  Buffer pinned_;
  Event copied_;
};

}  // namespace llamesh::device
