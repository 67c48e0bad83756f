#include "device/async_copy.hpp"

#include <cstring>

#include "core/trace.hpp"
#include "device/cuda.hpp"
#include "device/device.hpp"
#include "device/simulated/simulation.hpp"

namespace llamesh::device {
namespace {

/// Copies on the CPU, in a worker thread.
void copy_traced(const char* direction, void* to, const void* from, std::size_t bytes) {
  TraceScope scope("copy", direction);
  if (auto* const event = scope.event()) {
    set_text(event->lane, direction);
    event->bytes = static_cast<std::int64_t>(bytes);
  }
  std::memcpy(to, from, bytes);
}

}  // namespace

Event upload_async(Stream& stream, const Tensor& to, const void* from) {
  const auto bytes = dense_bytes(to);
  if (stream.kind() == Kind::simulated)
    simulate_host_copy(stream, bytes);
  else if (stream.on_gpu())
    cuda::upload_async(stream, to.data(), from, bytes);
  else
    stream.run(
        [data = to.data(), from, bytes] { copy_traced("copies to device", data, from, bytes); });
  return stream.record();
}

Event download_async(Stream& stream, void* to, const Tensor& from) {
  const auto bytes = dense_bytes(from);
  if (stream.kind() == Kind::simulated)
    simulate_host_copy(stream, bytes);
  else if (stream.on_gpu())
    cuda::download_async(stream, to, from.data(), bytes);
  else
    stream.run([to, data = from.data(), bytes] { copy_traced("copies to host", to, data, bytes); });
  return stream.record();
}

Tensor Staging::to_device(Stream& stream, const Tensor& host) {
  if (!host || !stream.on_gpu()) return host;
  make_room(stream, host.bytes());
  const Tensor copy = room_for(host, 0);
  upload(stream, copy, host.data());
  return copy;
}

std::vector<Tensor> Staging::to_device_async(Stream& stream, std::vector<Tensor> hosts) {
  std::int64_t bytes = 0;
  for (const Tensor& host : hosts) bytes += host ? host.bytes() : 0;
  if (bytes == 0 || !stream.on_gpu()) return hosts;
  make_room(stream, bytes);
  copied_.wait();
  if (pinned_.bytes() < bytes) pinned_ = Buffer::on_host(bytes);
  std::int64_t at = 0;
  for (Tensor& tensor : hosts) {
    if (!tensor) continue;
    std::memcpy(pinned_.data() + at, tensor.data(), static_cast<std::size_t>(tensor.bytes()));
    tensor = room_for(tensor, at);
    at += tensor.bytes();
  }
  copied_ =
      upload_async(stream, room_.tensor(DType::i32, {bytes / size_of(DType::i32)}), pinned_.data());
  return hosts;
}

void Staging::make_room(Stream& stream, std::int64_t bytes) {
  if (room_.bytes() >= bytes) return;
  stream.record().wait();  // the old buffer is no longer read
  room_ = Buffer(bytes);
}

Tensor Staging::room_for(const Tensor& host, std::int64_t offset) const {
  return host.dims() == 1 ? room_.tensor(host.dtype(), {host.numel()}, offset)
                          : room_.tensor(host.dtype(), {host.rows(), host.cols()}, offset);
}

}  // namespace llamesh::device
