#pragma once

#include <vector>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"

// Copies between Buffer::on_host() memory and dense device tensors, in `stream` order. They return
// at once; the host memory stays in use until the event completes.
namespace llamesh::device {

/// One stream per direction, so that neither waits for the other.
struct CopyStreams {
  Stream to_device = Stream::communication();
  Stream to_host = Stream::communication();
  /// Returns the seconds for which waits on these streams' events have blocked a calling thread's
  /// stream.
  double seconds_blocked() const { return to_device.seconds_blocked() + to_host.seconds_blocked(); }
};

Event upload_async(Stream& stream, const Tensor& to, const void* from);
Event download_async(Stream& stream, void* to, const Tensor& from);

/// Stage that makes host data readable by kernels: in place on the CPU, as a copy on a GPU.
class Staging {
 public:
  /// Returns a dense tensor that kernels on `stream` can read: `host` itself on the CPU; on a GPU a
  /// copy, valid until the next call.
  Tensor to_device(Stream& stream, const Tensor& host);
  /// Like to_device() for several tensors, but does not wait for the stream's work. On a GPU this
  /// is one copy through pinned memory: it waits only for the previous call's copy, so the host may
  /// change the data while kernels still read the previous call's. Empty tensors stay empty.
  std::vector<Tensor> to_device_async(Stream& stream, std::vector<Tensor> hosts);

 private:
  void make_room(Stream& stream, std::int64_t bytes);
  Tensor room_for(const Tensor& host, std::int64_t offset) const;

  Buffer room_;  // on a GPU only
  // For to_device_async(): the stream orders kernels that read room_ with the copy into it; the
  // event orders the host's writes to pinned_ with that copy's reads.
  Buffer pinned_;
  Event copied_;
};

}  // namespace llamesh::device
