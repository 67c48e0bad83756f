#pragma once

#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::device {

/// Makes host data readable by kernels: on the CPU the host memory itself, on a GPU a copy.
class Staging {
 public:
  /// A dense host tensor where kernels of `stream` can read it: the tensor itself on the CPU; on a
  /// GPU a copy, valid until the next call.
  Tensor reachable(Stream& stream, const Tensor& host);
  /// The same without waiting for the stream's work: on a GPU through pinned memory, so that the
  /// host may change the data while kernels still read those of the previous call. It waits only
  /// for the previous call's copy.
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
