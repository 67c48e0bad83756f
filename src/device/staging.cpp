#include "device/staging.hpp"

#include <cstring>

#include "device/async_copy.hpp"
#include "device/device.hpp"

namespace llamesh::device {

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
