#include "model/loss_sum.hpp"

#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "device/async_copy.hpp"

namespace llamesh::model {
namespace {

/// In whole units, losses in double add up exactly, in any order.
constexpr double unit = 0x1p-24;

double sum_of(std::span<const float> losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0, [](double sum, float loss) {
    return sum + std::nearbyint(loss / unit) * unit;
  });
}

}  // namespace

void LossSum::add(device::Stream& stream, const Tensor& losses) {
  if (!stream.on_gpu()) {
    stream.record().wait();
    sum_ += sum_of(losses.span<float>());
    return;
  }
  Arrival& arrival = arrivals_[next_];
  next_ = (next_ + 1) % arrivals_.size();
  finish(arrival);
  if (arrival.host.bytes() < losses.bytes()) {
    arrival.host = device::Buffer::on_host(losses.bytes());
    arrival.host.stop_counting();  // their number depends on the micro-batches per step
  }
  arrival.count = static_cast<std::size_t>(losses.numel());
  arrival.done = device::download_async(stream, arrival.host.data(), losses);
}

double LossSum::sum() {
  for (std::size_t i = 0; i < arrivals_.size(); ++i)
    finish(arrivals_[(next_ + i) % arrivals_.size()]);
  return sum_;
}

double LossSum::take() {
  sum();
  return std::exchange(sum_, 0.0);
}

void LossSum::finish(Arrival& arrival) {
  if (arrival.count == 0) return;
  arrival.done.wait();
  sum_ += sum_of({reinterpret_cast<const float*>(arrival.host.data()), arrival.count});
  arrival.count = 0;
}

}  // namespace llamesh::model
