#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::app {

/// The shortest of the calls of `work` that fit into `budget` seconds (at least three), in seconds.
/// The shortest, since whatever else the machine does can only make a call longer. On a GPU ten
/// calls go into the compute stream at a time, so that their launching is not what is measured.
template <class Work>
double shortest(const Work& work, double budget = 0.25) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  auto& stream = device::compute_stream();
  const int together = stream.on_gpu() ? 10 : 1;
  work();  // makes primitives and scratch, touches pages
  stream.record().wait();
  double best = 1e30;
  const auto begin = Clock::now();
  for (int calls = 0; calls < 3 || Seconds(Clock::now() - begin).count() < budget; ++calls) {
    const auto start = Clock::now();
    for (int i = 0; i < together; ++i) work();
    stream.record().wait();
    const auto seconds = Seconds(Clock::now() - start).count() / together;
    if (seconds < best) best = seconds;
  }
  return best;
}

/// "2 threads", or the GPU's description.
std::string where();

/// A matrix of random numbers that owns its memory.
class RandomMatrix {
 public:
  RandomMatrix(DType dtype, std::int64_t rows, std::int64_t cols, float spread = 1.0F);
  operator Tensor() const { return view_; }  // NOLINT(google-explicit-constructor)

 private:
  device::Buffer buffer_;
  Tensor view_;
};

/// FLOP/s of fused multiply-adds in registers on all threads: what no fp32 kernel of the CPU can
/// exceed.
double measured_fma_rate();
/// Bytes/s that memory gives on arrays far larger than the caches: on the CPU a[i] = b[i] + s *
/// c[i] as 12 bytes an element (the triad of STREAM), on a GPU a copy by cudaMemcpy as 8.
double measured_memory_rate();

/// Token ids below `vocabulary` where kernels read them.
class RandomTokens {
 public:
  RandomTokens(std::int64_t count, std::int64_t vocabulary);
  operator Tensor() const { return view_; }  // NOLINT(google-explicit-constructor)

 private:
  device::Buffer buffer_;
  Tensor view_;
};

}  // namespace llamesh::app
