#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "app/bench/bench.hpp"
#include "app/bench/bench_timing.hpp"
#include "app/program/program.hpp"
#include "ops/bf16_products.hpp"
#include "ops/gemm_algorithms.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {
namespace {

/// A linear layer.
struct Layer {
  const char* name;
  std::int64_t in, out;
};
/// Hidden 768, 12/4 heads with dim 64, intermediate 2048, vocabulary 16384.
const Layer layers_100m[] = {{"qkv", 768, 1280},
                             {"attention out", 768, 768},
                             {"gate and up", 768, 4096},
                             {"down", 2048, 768},
                             {"head", 768, 16384}};
/// Hidden 4096, 32/8 heads with dim 128, intermediate 14336, vocabulary 128256.
const Layer layers_8b[] = {{"qkv", 4096, 6144},
                           {"attention out", 4096, 4096},
                           {"gate and up", 4096, 28672},
                           {"down", 14336, 4096},
                           {"head", 4096, 128256}};

/// GFLOP/s for a layer's three GEMMs: forward, input gradient, weight gradient.
using Rates = std::array<double, 3>;

Rates measure(const Layer& layer, std::int64_t tokens, DType dtype) {
  auto& stream = device::compute_stream();
  const double budget = stream.on_gpu() ? 0.1 : 0.25;
  const RandomMatrix x(dtype, tokens, layer.in), y(dtype, tokens, layer.out);
  const RandomMatrix w(dtype, layer.out, layer.in, 0.02F), dw(DType::f32, layer.out, layer.in);
  const auto flops = 2e-9 * static_cast<double>(tokens * layer.in * layer.out);
  const auto forward = shortest([&] { ops::linear(stream, y, x, w, Accumulate::no); }, budget);
  const auto input =
      shortest([&] { ops::linear_backward_input(stream, x, y, w, Accumulate::no); }, budget);
  const auto weight =
      shortest([&] { ops::linear_backward_weight(stream, dw, y, x, Accumulate::yes); }, budget);
  return {flops / forward, flops / input, flops / weight};
}

/// FP8 matrices in their own memory.
class QuantizedMatrix {
 public:
  QuantizedMatrix(std::int64_t rows, std::int64_t cols)
      : values_(rows * cols),
        scales_(rows * size_of(DType::f32)),
        matrix_{.values = values_.tensor(DType::e4m3, {rows, cols}),
                .scales = scales_.tensor(DType::f32, {rows})} {}
  operator const ops::Fp8Matrix&() const { return matrix_; }  // NOLINT(google-explicit-constructor)

 private:
  device::Buffer values_, scales_;
  ops::Fp8Matrix matrix_;
};

/// GFLOP/s for forward and input gradient, as a step computes them.
std::array<double, 2> measure_fp8(const Layer& layer, std::int64_t tokens) {
  auto& stream = device::compute_stream();
  const double budget = stream.on_gpu() ? 0.1 : 0.25;
  const RandomMatrix x(DType::bf16, tokens, layer.in), y(DType::bf16, tokens, layer.out);
  const RandomMatrix w(DType::bf16, layer.out, layer.in, 0.02F);
  const QuantizedMatrix xq(tokens, layer.in), wq(layer.out, layer.in);
  const QuantizedMatrix yq(tokens, layer.out), wq_transposed(layer.in, layer.out);
  const auto flops = 2e-9 * static_cast<double>(tokens * layer.in * layer.out);
  const auto forward = shortest(
      [&] {
        ops::quantize_rows(stream, xq, x);
        ops::quantize_rows(stream, wq, w);
        ops::linear_fp8(stream, y, xq, wq, Accumulate::no);
      },
      budget);
  const auto input = shortest(
      [&] {
        ops::quantize_rows(stream, yq, y);
        ops::quantize_columns(stream, wq_transposed, w);
        ops::linear_fp8(stream, x, yq, wq_transposed, Accumulate::no);
      },
      budget);
  return {flops / forward, flops / input};
}

void print_fp8_table(std::span<const Layer> layers, std::int64_t tokens) {
  fmt::print("\nfp8{}, rounding included\n", ops::multiplies_fp8() ? "" : ", emulated");
  fmt::print("{:<16}{:>22}{:>14}{:>14}\n", "layer", "tokens x in x out", "forward", "dx");
  for (const auto& layer : layers.first(layers.size() - 1)) {  // not the head
    const auto rates = measure_fp8(layer, tokens);
    fmt::print("{:<16}{:>22}{:>14.0f}{:>14.0f}\n", layer.name,
               fmt::format("{} x {} x {}", tokens, layer.in, layer.out), rates[0], rates[1]);
  }
}

/// Returns the number of algorithms to compare. fp32 has only one: comparing takes minutes, and
/// training on a GPU uses bf16.
int candidates_of(DType dtype) {
  return dtype == DType::bf16 ? ops::gemm_candidates() : 1;
}

/// Rates of the algorithm that training uses for a shape, and of the library's best one.
struct Measured {
  Rates taken, best;
};

Measured measure_candidates(const Layer& layer, std::int64_t tokens, DType dtype) {
  Measured result{measure(layer, tokens, dtype), {}};
  result.best = result.taken;
  for (int candidate = 1; candidate < candidates_of(dtype); ++candidate) {
    ops::use_gemm_candidate(candidate);
    std::ranges::transform(result.best, measure(layer, tokens, dtype), result.best.begin(),
                           [](double a, double b) { return std::max(a, b); });
  }
  ops::use_gemm_candidate(0);
  return result;
}

/// Formats a rate, with its fraction of the best if there was a choice: "712 99 %".
std::string cell(double taken, double best, int candidates) {
  if (candidates == 1) return fmt::format("{:.0f}", taken);
  return fmt::format("{:.0f} {:3.0f} %", taken, 100 * taken / best);
}

void print_table(const std::string& name, std::span<const Layer> layers, std::int64_t tokens,
                 DType dtype) {
  const auto square = measured_gemm_rate(dtype) / 1e9;
  fmt::print("\n{}; a large square GEMM: {:.0f} GFLOP/s\n", name, square);
  fmt::print("{:<16}{:>22}{:>14}{:>14}{:>14}\n", "layer", "tokens x in x out", "forward", "dx",
             "dw");
  double best = square;
  for (const auto& layer : layers) {
    const auto [taken, possible] = measure_candidates(layer, tokens, dtype);
    fmt::print("{:<16}{:>22}", layer.name,
               fmt::format("{} x {} x {}", tokens, layer.in, layer.out));
    for (std::size_t i = 0; i < taken.size(); ++i)
      fmt::print("{:>14}", cell(taken[i], possible[i], candidates_of(dtype)));
    fmt::print("\n");
    best = std::max(best, std::ranges::max(taken));
  }
  fmt::print("best GEMM: {:.0f} GFLOP/s\n", best);
}

void bench_gemm_on_gpu() {
  fmt::print("GEMMs of Llama 3 8B in GFLOP/s on {}\n", where());
  fmt::print("in bf16 each against the best of cuBLASLt's first {} algorithms for the shape\n",
             ops::gemm_candidates());
  for (const auto dtype : {DType::f32, DType::bf16})
    print_table(std::string(name_of(dtype)), layers_8b, 16384, dtype);
  print_fp8_table(layers_8b, 16384);
}

/// Measures fp32 and bf16, with both bf16 methods if available.
void bench_gemm_on_cpu() {
  constexpr std::int64_t tokens = 2048;
  fmt::print("GEMMs of the 100M Llama in GFLOP/s on {}\n", where());
  fmt::print("{}; fp32 FMA peak: {:.0f} GFLOP/s\n", ops::instruction_set(),
             measured_fma_rate() / 1e9);
  print_table("fp32", layers_100m, tokens, DType::f32);
  use_faster_bf16_products();
  const auto taken = ops::bf16_products();
  for (const auto way : {ops::Bf16Products::native, ops::Bf16Products::in_fp32}) {
    if (way == ops::Bf16Products::native && !ops::has_native_bf16()) continue;
    ops::use_bf16_products(way);
    print_table(
        fmt::format("bf16, {}{}",
                    way == ops::Bf16Products::native ? "by bf16 instructions" : "converted to fp32",
                    way == taken ? " (what training takes here)" : ""),
        layers_100m, tokens, DType::bf16);
  }
  ops::use_bf16_products(taken);
  print_fp8_table(layers_100m, tokens);
}

/// Measures the 100M Llama's GEMMs against the cores' peak, or Llama 3 8B's on a GPU.
int bench_gemm(const std::string& device) {
  use_single_device(device);
  if (device::compute_stream().on_gpu())
    bench_gemm_on_gpu();
  else
    bench_gemm_on_cpu();
  return 0;
}

}  // namespace

void declare_bench_gemm(CLI::App& bench, Run& chosen) {
  declare_on_device(bench, chosen, "gemm", "Compare GEMM rates with the peak", bench_gemm);
}

}  // namespace llamesh::app
