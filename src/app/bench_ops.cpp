#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <vector>

#include "app/bench.hpp"
#include "app/bench_timing.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {
namespace {

// The shapes of the 100M Llama; M tokens, D hidden, F intermediate, V vocabulary.
constexpr std::int64_t sequence = 512;
constexpr std::int64_t M = 4 * sequence;
constexpr std::int64_t D = 768;
constexpr std::int64_t F = 2048;
constexpr std::int64_t V = 16384;
constexpr ops::AttentionShape shape{4, sequence, 12, 4, 64};

/// Prints one kernel's rate: `bytes` are those that it must read and write.
template <class Work>
void print_rate(const char* name, DType dtype, std::int64_t bytes, double triad, const Work& work) {
  const auto rate = static_cast<double>(bytes) / shortest(work, 0.15);
  fmt::print("{:<22}{:>6}{:>12.1f}{:>11.0f} %\n", name, name_of(dtype), rate / 1e9,
             100.0 * rate / triad);
}

void norm_and_activation(DType dtype, double triad) {
  auto stream = device::Stream::calling_thread();
  const auto b = size_of(dtype);
  const RandomMatrix x(dtype, M, D), y(dtype, M, D), delta(dtype, M, D), w(dtype, 1, D);
  const RandomMatrix inverse(DType::f32, 1, M), dw(DType::f32, 1, D),
      table(DType::f32, sequence, 64);
  const Tensor weight = Tensor(w).reshape({D});
  print_rate("rms_norm + residual", dtype, 4 * M * D * b, triad,
             [&] { ops::rms_norm(stream, y, inverse, x, x, delta, weight, 1e-5F); });
  print_rate("rms_norm backward", dtype, 3 * M * D * b, triad, [&] {
    ops::rms_norm_backward(stream, delta, Accumulate::no, Tensor(dw).reshape({D}), Accumulate::yes,
                           y, x, inverse, weight);
  });
  print_rate("rope", dtype, 2 * M * D * b, triad,
             [&] { ops::rope(stream, y, table, Tensor(), 64, ops::Rotation::forward); });
  const RandomMatrix gate_up(dtype, M, 2 * F), out(dtype, M, F), dgate_up(dtype, M, 2 * F);
  print_rate("swiglu", dtype, 3 * M * F * b, triad, [&] { ops::swiglu(stream, out, gate_up); });
  print_rate("swiglu backward", dtype, 5 * M * F * b, triad,
             [&] { ops::swiglu_backward(stream, dgate_up, out, gate_up); });
}

void vocabulary(DType dtype, double triad) {
  auto stream = device::Stream::calling_thread();
  const auto b = size_of(dtype);
  std::vector<std::int32_t> numbers;
  for (std::int64_t m = 0; m < M; ++m) numbers.push_back(static_cast<std::int32_t>(m * 7919 % V));
  const Tensor tokens(numbers.data(), DType::i32, {M});
  const RandomMatrix logits(dtype, M, V), losses(DType::f32, 1, M);
  // The gradient overwrites the logits, so later calls see other numbers; none takes another path
  // for that.
  print_rate("cross_entropy", dtype, 3 * M * V * b, triad, [&] {
    ops::cross_entropy(stream, losses, logits, tokens, 1.0F, ops::WithGradient::yes);
  });
  const RandomMatrix table(dtype, V, D), x(dtype, M, D), dtable(DType::f32, V, D);
  print_rate("embedding", dtype, 2 * M * D * b, triad,
             [&] { ops::embedding(stream, x, tokens, table); });
  print_rate("embedding backward", dtype, V * D * 4 + M * D * b, triad,
             [&] { ops::embedding_backward(stream, dtable, x, tokens, Accumulate::no); });
}

void elementwise(double triad) {
  auto stream = device::Stream::calling_thread();
  constexpr std::int64_t n = 1 << 24;
  const RandomMatrix p(DType::f32, 1, n), m(DType::f32, 1, n), g(DType::f32, 1, n);
  const RandomMatrix v(DType::f32, 1, n), half(DType::bf16, 1, n);
  ops::fill(stream, v, 0.1F);
  print_rate("copy", DType::f32, 8 * n, triad, [&] { ops::copy(stream, p, g); });
  print_rate("copy to bf16", DType::f32, 6 * n, triad, [&] { ops::copy(stream, half, g); });
  print_rate("add", DType::f32, 12 * n, triad, [&] { ops::add(stream, p, g); });
  print_rate("add of bf16", DType::f32, 10 * n, triad, [&] { ops::add(stream, p, half); });
  print_rate("scale", DType::f32, 8 * n, triad, [&] { ops::scale(stream, p, 0.999F); });
  print_rate("sum_of_squares", DType::f32, 4 * n, triad, [&] { ops::sum_of_squares(stream, g); });
  const ops::AdamwStep step{1e-3F, 0.9F, 0.95F, 1e-8F, 0.1F, 0.1F, 0.05F, 1.0F};
  print_rate("adamw", DType::f32, 28 * n, triad, [&] { ops::adamw(stream, p, m, v, g, step); });
}

/// The FLOPs that causality leaves: 2 products forward, 5 backward, of T (T + 1) / 2 scores a head.
void attention(DType dtype, double peak) {
  auto stream = device::Stream::calling_thread();
  const auto& s = shape;
  const auto q_cols = s.heads * s.head_dim, kv_cols = s.kv_heads * s.head_dim;
  const RandomMatrix qkv(dtype, M, q_cols + 2 * kv_cols), dqkv(dtype, M, q_cols + 2 * kv_cols);
  const RandomMatrix out(dtype, M, q_cols), dout(dtype, M, q_cols);
  const RandomMatrix log_sum_exp(DType::f32, s.batch * s.heads, s.sequence);
  const RandomMatrix delta(DType::f32, s.batch * s.heads, s.sequence);
  const auto q = [&](const Tensor& t) { return t.slice_cols(0, q_cols); };
  const auto k = [&](const Tensor& t) { return t.slice_cols(q_cols, kv_cols); };
  const auto v = [&](const Tensor& t) { return t.slice_cols(q_cols + kv_cols, kv_cols); };
  const auto product = static_cast<double>(s.batch * s.heads * s.head_dim) *
                       static_cast<double>(s.sequence * (s.sequence + 1));
  const auto forward = shortest(
      [&] { ops::attention(stream, out, log_sum_exp, q(qkv), k(qkv), v(qkv), Tensor(), s); }, 0.5);
  const auto backward = shortest(
      [&] {
        ops::attention_backward(stream, q(dqkv), k(dqkv), v(dqkv), dout, q(qkv), k(qkv), v(qkv),
                                out, log_sum_exp, delta, Tensor(), s);
      },
      0.5);
  const auto print = [&](const char* name, double rate) {
    fmt::print("{:<22}{:>6}{:>12.1f}{:>11.0f} %\n", name, name_of(dtype), rate / 1e9,
               100.0 * rate / peak);
  };
  print("attention", 2.0 * product / forward);
  print("attention backward", 5.0 * product / backward);
}

}  // namespace

int bench_ops() {
  const auto triad = measured_triad_rate();
  const auto peak = measured_fma_rate();
  fmt::print("Kernels of the 100M Llama ({} tokens), {} threads; triad {:.1f} GB/s\n\n", M,
             omp_get_max_threads(), triad / 1e9);
  fmt::print("{:<22}{:>6}{:>12}{:>13}\n", "kernel", "type", "GB/s", "of triad");
  elementwise(triad);
  for (const auto dtype : {DType::f32, DType::bf16}) {
    norm_and_activation(dtype, triad);
    vocabulary(dtype, triad);
  }
  fmt::print("Above 100 % the numbers stay in the last-level cache.\n");
  fmt::print("\nfp32 FMA peak {:.0f} GFLOP/s; causal attention, {} heads of {}, {} tokens\n",
             peak / 1e9, shape.heads, shape.head_dim, shape.sequence);
  fmt::print("{:<22}{:>6}{:>12}{:>13}\n", "kernel", "type", "GFLOP/s", "of peak");
  attention(DType::f32, peak);
  attention(DType::bf16, peak);
  return 0;
}

}  // namespace llamesh::app
