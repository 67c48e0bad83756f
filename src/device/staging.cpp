#include "device/staging.hpp"

#include <cstring>

#include "device/async_copy.hpp"
#include "device/device.hpp"

namespace llamesh::device {

Tensor Staging::reachable(Stream& stream, const Tensor& host) {
  if (!host || !stream.on_gpu()) return host;
  const Tensor copy = room_for(stream, host);
  upload(stream, copy, host.data());
  return copy;
}

Tensor Staging::reachable_soon(Stream& stream, const Tensor& host) {
  if (!host || !stream.on_gpu()) return host;
  const Tensor copy = room_for(stream, host);
  copied_.wait();
  if (pinned_.bytes() < host.bytes()) pinned_ = Buffer::on_host(host.bytes());
  std::memcpy(pinned_.data(), host.data(), static_cast<std::size_t>(host.bytes()));
  copied_ = upload_async(stream, copy, pinned_.data());
  return copy;
}

Tensor Staging::room_for(Stream& stream, const Tensor& host) {
  if (room_.bytes() < host.bytes()) {
    stream.record().wait();  // nothing reads the former buffer any more
    room_ = Buffer(host.bytes());
  }
  return host.dims() == 1 ? room_.tensor(host.dtype(), {host.numel()})
                          : room_.tensor(host.dtype(), {host.rows(), host.cols()});
}

}  // namespace llamesh::device
