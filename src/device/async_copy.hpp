#pragma once

#include "core/tensor.hpp"
#include "device/stream.hpp"

// Copies between memory of Buffer::on_host() and dense tensors on the device of `stream`, after its
// work so far. They return at once; the host memory is in use until the event is complete.
namespace llamesh::device {

/// A stream for each direction, so that neither waits for the other.
struct CopyStreams {
  Stream to_device = Stream::communication();
  Stream to_host = Stream::communication();
  /// Seconds so far in which a calling thread's stream has been blocked by waits for their events.
  double seconds_blocked() const { return to_device.seconds_blocked() + to_host.seconds_blocked(); }
};

Event upload_async(Stream& stream, const Tensor& to, const void* from);
Event download_async(Stream& stream, void* to, const Tensor& from);

}  // namespace llamesh::device
