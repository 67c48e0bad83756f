#include "ops/gemm_rate.hpp"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/clock.hpp"
#include "core/philox.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::ops {
namespace {

constexpr int windows = 5;
constexpr double window_seconds = 0.02;
constexpr double warm_up_seconds = 0.06;  ///< new threads may share a core until the scheduler
                                          ///< balances them

std::vector<float> random_numbers(std::int64_t count) {
  // Repeats a million random numbers: as good as all of them, and saves seconds.
  std::vector<float> values(static_cast<std::size_t>(count));
  const auto drawn = std::min<std::int64_t>(count, 1 << 20);
  fill_normal(values.data(), 0, drawn, 0, "measured_gemm_rate", 1.0F);
  for (std::int64_t i = drawn; i < count; i += drawn)
    std::copy_n(values.data(), std::min(drawn, count - i), values.data() + i);
  return values;
}

/// Distributes `flops`, done evenly from `begin` to `end`, over the windows that this time
/// overlaps.
void share_out(double flops, double begin, double end, std::vector<double>& done) {
  for (std::size_t w = 0; w < done.size(); ++w) {
    const double from = static_cast<double>(w) * window_seconds;
    const double within = std::min(end, from + window_seconds) - std::max(begin, from);
    if (within > 0) done[w] += flops * within / (end - begin);
  }
}

}  // namespace

/// Large enough to fill the device, small enough that a product is short even if ranks share cores.
std::int64_t measured_gemm_size(device::Kind kind, double memory_bytes) {
  if (kind == device::Kind::cpu) return omp_get_max_threads() < 8 ? 512 : 1024;
  std::int64_t n = 8192;
  while (n > 64 && static_cast<double>(4 * n * n * 4) > memory_bytes / 16) n /= 2;
  return n;
}

std::vector<double> measured_gemm_rates(DType dtype, const std::function<void()>& begin) {
  auto& stream = device::compute_stream();
  const std::int64_t n =
      measured_gemm_size(stream.kind(), static_cast<double>(device::memory_bytes()));
  const device::Buffer numbers(n * n * 4);
  const auto random = numbers.tensor(DType::f32, {n, n});
  const auto values = random_numbers(n * n);
  device::upload(stream, random, values.data());
  const device::Buffer operands(3 * n * n * 4);
  const auto matrix = [&](std::int64_t i) { return operands.tensor(dtype, {n, n}, i * n * n * 4); };
  copy(stream, matrix(1), random);
  copy(stream, matrix(2), random);
  // Waits for the previous product only, so that a GPU always has the next one queued.
  device::Event before;
  const auto multiply = [&] {
    linear(stream, matrix(0), matrix(1), matrix(2), Accumulate::no);
    std::exchange(before, stream.record()).wait();
  };
  auto start = std::chrono::steady_clock::now();
  do multiply();  // the first call creates the primitive
  while (seconds_since(start) < warm_up_seconds);
  before.wait();
  begin();
  multiply();  // on a GPU it is still running when the clock starts
  start = std::chrono::steady_clock::now();
  const auto flops = 2.0 * static_cast<double>(n * n * n);
  std::vector<double> rates(windows);
  for (double now = 0; now < windows * window_seconds;) {
    const double began = now;
    multiply();
    now = seconds_since(start);
    share_out(flops / window_seconds, began, now, rates);
  }
  before.wait();
  return rates;
}

}  // namespace llamesh::ops
