#include "app/bench/bench_timing.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <vector>

#include "core/philox.hpp"
#include "device/device.hpp"
#include "ops/cpu/vec.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {

std::string where() {
  return device::kind() == device::Kind::cuda ? device::description()
                                              : fmt::format("{} threads", omp_get_max_threads());
}

RandomMatrix::RandomMatrix(DType dtype, std::int64_t rows, std::int64_t cols, float spread)
    : buffer_(rows * cols * size_of(dtype)), view_(buffer_.tensor(dtype, {rows, cols})) {
  // One repeated block of random values: drawing all would take longer than the benchmark.
  const auto piece = std::min<std::int64_t>(rows * cols, 1 << 20);
  std::vector<float> drawn(static_cast<std::size_t>(piece));
  fill_normal(drawn.data(), 0, piece, 1, "bench", spread);
  auto& stream = device::compute_stream();
  const device::Buffer random(piece * 4);
  const auto values = random.tensor(DType::f32, {piece});
  device::upload(stream, values, drawn.data());
  const auto all = view_.reshape({rows * cols});
  for (std::int64_t first = 0; first < rows * cols; first += piece) {
    const auto count = std::min(piece, rows * cols - first);
    ops::copy(stream, all.slice(first, count), values.slice(0, count));
  }
  stream.record().wait();  // before `random` is destroyed
}

RandomTokens::RandomTokens(std::int64_t count, std::int64_t vocabulary)
    : buffer_(count * 4), view_(buffer_.tensor(DType::i32, {count})) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(i * 7919 % vocabulary));
  device::upload(device::compute_stream(), view_, ids.data());
}

double measured_gemm_rate(DType dtype) {
  auto& stream = device::compute_stream();
  const std::int64_t n = stream.on_gpu() ? 8192 : 1024;
  const RandomMatrix c(dtype, n, n), a(dtype, n, n), b(dtype, n, n);
  const auto seconds = shortest([&] { ops::linear(stream, c, a, b, Accumulate::no); });
  return 2.0 * static_cast<double>(n * n * n) / seconds;
}

double measured_fma_rate() {
  using ops::cpu::Vec;
  constexpr int sums = 12;  // enough to hide the FMA units' latency
  constexpr std::int64_t rounds = 1000000;
  const auto threads = omp_get_max_threads();
  const auto seconds = shortest([&] {
#pragma omp parallel num_threads(threads)
    {
      Vec total[sums];
      for (int i = 0; i < sums; ++i) total[i] = ops::cpu::broadcast(static_cast<float>(i));
      for (std::int64_t r = 0; r < rounds; ++r)
        for (int i = 0; i < sums; ++i) total[i] = total[i] * 0.999F + 0.001F;
      volatile float sink = 0.0F;
      for (int i = 0; i < sums; ++i) sink = sink + ops::cpu::sum(total[i]);
    }
  });
  return 2.0 * sums * ops::cpu::vec_width * static_cast<double>(rounds) * threads / seconds;
}

namespace {

double triad_rate() {
  constexpr std::int64_t n = 1 << 25;
  const RandomMatrix a(DType::f32, 1, n), b(DType::f32, 1, n), c(DType::f32, 1, n);
  auto* to = Tensor(a).as<float>();
  const auto* first = Tensor(b).as<float>();
  const auto* second = Tensor(c).as<float>();
  const auto seconds = shortest([&] {
#pragma omp parallel for simd schedule(static)
    for (std::int64_t i = 0; i < n; ++i) to[i] = first[i] + 0.5F * second[i];
  });
  return 12.0 * static_cast<double>(n) / seconds;
}

}  // namespace

double measured_memory_rate() {
  auto& stream = device::compute_stream();
  if (!stream.on_gpu()) return triad_rate();
  constexpr std::int64_t n = 1 << 28;
  const RandomMatrix a(DType::f32, 1, n), b(DType::f32, 1, n);
  const auto seconds = shortest([&] { device::copy_bytes(stream, a, b); });
  return 8.0 * static_cast<double>(n) / seconds;
}

}  // namespace llamesh::app
