#pragma once

#include <chrono>
#include <cstdint>

#include "core/tensor.hpp"
#include "device/buffer.hpp"

namespace llamesh::app {

/// The shortest of the calls of `work` that fit into `budget` seconds (at least three), in seconds.
/// The shortest, since whatever else the machine does can only make a call longer.
template <class Work>
double shortest(const Work& work, double budget = 0.25) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  work();  // makes primitives and scratch, touches pages
  double best = 1e30;
  const auto begin = Clock::now();
  for (int calls = 0; calls < 3 || Seconds(Clock::now() - begin).count() < budget; ++calls) {
    const auto start = Clock::now();
    work();
    const auto seconds = Seconds(Clock::now() - start).count();
    if (seconds < best) best = seconds;
  }
  return best;
}

/// A matrix of random numbers that owns its memory.
class RandomMatrix {
 public:
  RandomMatrix(DType dtype, std::int64_t rows, std::int64_t cols, float spread = 1.0F);
  operator Tensor() const { return view_; }  // NOLINT(google-explicit-constructor)

 private:
  device::Buffer buffer_;
  Tensor view_;
};

/// FLOP/s of fused multiply-adds in registers on all threads: what no fp32 kernel can exceed.
double measured_fma_rate();
/// Bytes/s of a[i] = b[i] + s * c[i] on arrays far larger than the caches, as 12 bytes an element.
double measured_triad_rate();

}  // namespace llamesh::app
