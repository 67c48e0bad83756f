#pragma once

#include "core/tensor.hpp"
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

}  // namespace llamesh::device
