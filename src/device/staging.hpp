#pragma once

#include <vector>

#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::device {

/// Makes host data readable by kernels: on the CPU the host memory itself, on a GPU a copy.
class Staging {
 public:
  /// A dense host tensor where kernels of `stream` can read it: the tensor itself on the CPU; on a
  /// GPU a copy, valid until the next call.
  Tensor reachable(Stream& stream, const Tensor& host);
  /// The same of several tensors, without waiting for the stream's work: on a GPU in one copy
  /// through pinned memory, so that the host may change the data while kernels still read those of
  /// the previous call. It waits only for the previous call's copy. Those that are no tensors stay
  /// none.
  std::vector<Tensor> reachable_soon(Stream& stream, std::vector<Tensor> hosts);

 private:
  void make_room(Stream& stream, std::int64_t bytes);
  Tensor room_for(const Tensor& host, std::int64_t offset) const;

  Buffer room_;  // of a GPU
  // For reachable_soon(): kernels that read room_ and the copy into it are in order by the stream;
  // what the host writes and that copy reads is in order by the event.
  Buffer pinned_;
  Event copied_;
};

}  // namespace llamesh::device
