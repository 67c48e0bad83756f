#include "model/host_copies.hpp"

#include "device/async_copy.hpp"

namespace llamesh::model {

void HostCopies::add(device::Stream& stream, const Tensor& values) {
  if (!stream.on_gpu()) {
    stream.record().wait();
    take_(values.span<float>());
    return;
  }
  Arrival& arrival = arrivals_[next_];
  next_ = (next_ + 1) % arrivals_.size();
  finish(arrival);
  if (arrival.host.bytes() < values.bytes()) {
    arrival.host = device::Buffer::on_host(values.bytes());
    arrival.host.stop_counting();  // their number depends on the micro-batches per step
  }
  arrival.count = static_cast<std::size_t>(values.numel());
  arrival.done = device::download_async(stream, arrival.host.data(), values);
}

void HostCopies::finish() {
  for (std::size_t i = 0; i < arrivals_.size(); ++i)
    finish(arrivals_[(next_ + i) % arrivals_.size()]);
}

void HostCopies::finish(Arrival& arrival) {
  if (arrival.count == 0) return;
  arrival.done.wait();
  take_({reinterpret_cast<const float*>(arrival.host.data()), arrival.count});
  arrival.count = 0;
}

}  // namespace llamesh::model
