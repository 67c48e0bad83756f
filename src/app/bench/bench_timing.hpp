#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "core/tensor.hpp"
#include "device/buffer.hpp"
#include "device/stream.hpp"

namespace llamesh::app {

/// Returns the minimum seconds per call of `work`, over all calls that fit into `budget` seconds
/// (at least three). The minimum, since other load can only make a call longer. On a GPU, short
/// calls are enqueued ten at a time, so that launch overhead is not measured.
template <class Work>
double shortest(const Work& work, double budget = 0.25) {
  using Clock = std::chrono::steady_clock;
  auto& stream = device::compute_stream();
  const auto seconds_of = [&](int calls) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) work();
    stream.record().wait();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  seconds_of(1);  // creates primitives and scratch, touches pages
  const bool is_short = stream.on_gpu() && seconds_of(1) < 0.01;
  const int together = is_short ? 10 : 1;
  double best = 1e30, spent = 0;
  for (int times = 0; times < 3 || spent < budget; ++times) {
    const auto seconds = seconds_of(together);
    spent += seconds;
    best = std::min(best, seconds / together);
  }
  return best;
}

/// Returns "2 threads", or the GPU's description.
std::string where();

/// A random matrix that owns its memory.
class RandomMatrix {
 public:
  RandomMatrix(DType dtype, std::int64_t rows, std::int64_t cols, float spread = 1.0F);
  operator Tensor() const { return view_; }  // NOLINT(google-explicit-constructor)

 private:
  device::Buffer buffer_;
  Tensor view_;
};

/// Measures the FLOP/s for a product of two random square matrices: 1024 x 1024, on a GPU 8192 x
/// 8192.
double measured_gemm_rate(DType dtype);
/// Measures the FLOP/s for fused multiply-adds in registers on all threads: an upper bound for
/// every fp32 CPU kernel.
double measured_fma_rate();
/// Measures memory bandwidth in bytes/s on arrays far larger than the caches: on the CPU a[i] =
/// b[i] + s * c[i], counted as 12 bytes per element (the STREAM triad); on a GPU a cudaMemcpy,
/// counted as 8.
double measured_memory_rate();

/// Token ids below `vocabulary`, in memory that kernels can read.
class RandomTokens {
 public:
  RandomTokens(std::int64_t count, std::int64_t vocabulary);
  operator Tensor() const { return view_; }  // NOLINT(google-explicit-constructor)

 private:
  device::Buffer buffer_;
  Tensor view_;
};

}  // namespace llamesh::app
