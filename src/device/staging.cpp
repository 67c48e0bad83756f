#include "device/staging.hpp"

#include "device/device.hpp"

namespace llamesh::device {

Tensor Staging::reachable(Stream& stream, const Tensor& host) {
  if (!host || !stream.on_gpu()) return host;
  if (room_.bytes() < host.bytes()) {
    stream.record().wait();  // nobody reads the former one any more
    room_ = Buffer(host.bytes());
  }
  const Tensor copy = host.dims() == 1 ? room_.tensor(host.dtype(), {host.numel()})
                                       : room_.tensor(host.dtype(), {host.rows(), host.cols()});
  upload(stream, copy, host.data());
  return copy;
}

}  // namespace llamesh::device
