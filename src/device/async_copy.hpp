#pragma once

#include "core/tensor.hpp"
#include "device/stream.hpp"

// Copies between memory of Buffer::on_host() and dense tensors on the device of `stream`, after its
// work so far. They return at once; the host memory is in use until the event is complete.
namespace llamesh::device {

Event upload_async(Stream& stream, const Tensor& to, const void* from);
Event download_async(Stream& stream, void* to, const Tensor& from);

}  // namespace llamesh::device
