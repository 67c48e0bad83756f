#include <fmt/format.h>
#include <omp.h>

#include <algorithm>

#include "app/bench.hpp"
#include "app/bench_timing.hpp"
#include "ops/gemm_rate.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {
namespace {

/// A linear layer of the 100M Llama (D = 768, 12/4 heads of 64, F = 2048, V = 16384).
struct Layer {
  const char* name;
  std::int64_t in, out;
};
const Layer layers[] = {{"qkv", 768, 1280},
                        {"attention out", 768, 768},
                        {"gate and up", 768, 4096},
                        {"down", 2048, 768},
                        {"head", 768, 16384}};
constexpr std::int64_t tokens = 2048;

/// GFLOP/s of the three products of a layer.
struct Rates {
  double forward, input, weight;
};

Rates measure(const Layer& layer, DType dtype) {
  auto stream = device::Stream::calling_thread();
  const RandomMatrix x(dtype, tokens, layer.in), y(dtype, tokens, layer.out);
  const RandomMatrix w(dtype, layer.out, layer.in, 0.02F), dw(DType::f32, layer.out, layer.in);
  const auto flops = 2e-9 * static_cast<double>(tokens * layer.in * layer.out);
  const auto forward = shortest([&] { ops::linear(stream, y, x, w); });
  const auto input = shortest([&] { ops::linear_backward_input(stream, x, y, w, Accumulate::no); });
  const auto weight =
      shortest([&] { ops::linear_backward_weight(stream, dw, y, x, Accumulate::yes); });
  return {flops / forward, flops / input, flops / weight};
}

void print_table(DType dtype) {
  const auto square = ops::measured_gemm_rate(dtype) / 1e9;
  fmt::print("\n{}; a 1024 cube: {:.0f} GFLOP/s\n", name_of(dtype), square);
  fmt::print("{:<16}{:>22}{:>10}{:>10}{:>10}\n", "layer", "tokens x in x out", "forward", "dx",
             "dw");
  double best = square;
  for (const auto& layer : layers) {
    const auto r = measure(layer, dtype);
    best = std::max({best, r.forward, r.input, r.weight});
    fmt::print("{:<16}{:>22}{:>10.0f}{:>10.0f}{:>10.0f}\n", layer.name,
               fmt::format("{} x {} x {}", tokens, layer.in, layer.out), r.forward, r.input,
               r.weight);
  }
  fmt::print("best GEMM: {:.0f} GFLOP/s\n", best);
}

}  // namespace

int bench_gemm() {
  fmt::print("GEMMs of the 100M Llama in GFLOP/s; {} threads, {}, bf16 is {}\n",
             omp_get_max_threads(), ops::instruction_set(),
             ops::has_fast_bf16() ? "native" : "computed in fp32");
  fmt::print("fp32 FMA peak: {:.0f} GFLOP/s\n", measured_fma_rate() / 1e9);
  print_table(DType::f32);
  print_table(DType::bf16);
  return 0;
}

}  // namespace llamesh::app
