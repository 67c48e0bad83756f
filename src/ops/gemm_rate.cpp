#include "ops/gemm_rate.hpp"

#include <chrono>

#include "core/philox.hpp"
#include "device/buffer.hpp"
#include "ops/ops.hpp"

namespace llamesh::ops {

double measured_gemm_rate(DType dtype) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  constexpr std::int64_t n = 1024;
  auto stream = Stream::calling_thread();
  const device::Buffer numbers(n * n * 4);
  const auto random = numbers.tensor(DType::f32, {n, n});
  fill_normal(random.as<float>(), 0, n * n, 0, "measured_gemm_rate", 1.0F);
  const device::Buffer operands(3 * n * n * 4);
  const auto matrix = [&](std::int64_t i) { return operands.tensor(dtype, {n, n}, i * n * n * 4); };
  copy(stream, matrix(1), random);
  copy(stream, matrix(2), random);
  linear(stream, matrix(0), matrix(1), matrix(2));  // makes the primitive
  // The mean, not the best: where ranks share cores, each gets a whole one now and then.
  std::int64_t products = 0;
  const auto start = Clock::now();
  double seconds = 0;
  do {
    linear(stream, matrix(0), matrix(1), matrix(2));
    ++products;
    seconds = Seconds(Clock::now() - start).count();
  } while (seconds < 0.2);
  return 2.0 * n * n * n * static_cast<double>(products) / seconds;
}

}  // namespace llamesh::ops
