#include "ops/gemm_rate.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/philox.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::ops {

double measured_gemm_rate(DType dtype) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  auto& stream = device::compute_stream();
  const std::int64_t n = stream.on_gpu() ? 8192 : 1024;  // large enough to fill the device
  const device::Buffer numbers(n * n * 4);
  const auto random = numbers.tensor(DType::f32, {n, n});
  // A million random numbers over and over are as good as all of them, and do not take seconds.
  std::vector<float> values(static_cast<std::size_t>(n * n));
  const auto drawn = std::min<std::int64_t>(n * n, 1 << 20);
  fill_normal(values.data(), 0, drawn, 0, "measured_gemm_rate", 1.0F);
  for (std::int64_t i = drawn; i < n * n; i += drawn)
    std::copy_n(values.data(), std::min(drawn, n * n - i), values.data() + i);
  device::upload(stream, random, values.data());
  const device::Buffer operands(3 * n * n * 4);
  const auto matrix = [&](std::int64_t i) { return operands.tensor(dtype, {n, n}, i * n * n * 4); };
  copy(stream, matrix(1), random);
  copy(stream, matrix(2), random);
  linear(stream, matrix(0), matrix(1), matrix(2));  // makes the primitive
  stream.record().wait();
  // The mean, not the best: where ranks share cores, each gets a whole one now and then.
  std::int64_t products = 0;
  const auto start = Clock::now();
  double seconds = 0;
  do {
    linear(stream, matrix(0), matrix(1), matrix(2));
    stream.record().wait();
    ++products;
    seconds = Seconds(Clock::now() - start).count();
  } while (seconds < 0.2);
  const auto size = static_cast<double>(n);
  return 2.0 * size * size * size * static_cast<double>(products) / seconds;
}

}  // namespace llamesh::ops
