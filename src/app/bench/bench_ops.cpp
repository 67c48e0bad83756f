#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "app/bench/bench.hpp"
#include "app/bench/bench_timing.hpp"
#include "app/program/program.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {
namespace {

/// Shapes: M tokens, T tokens per sequence, D hidden, F intermediate, V vocabulary.
struct Shapes {
  const char* name;
  std::int64_t M, T, D, F, V;
  ops::AttentionShape attention;
};
const Shapes of_100m{"the 100M Llama", 2048, 512, 768, 2048, 16384, {4, 512, 12, 4, 64}};
const Shapes of_8b{"Llama 3 8B", 16384, 4096, 4096, 14336, 128256, {4, 4096, 32, 8, 128}};

/// Prints one kernel's rate; `bytes` is the minimum it must read and write.
template <class Work>
void print_rate(const char* name, DType dtype, std::int64_t bytes, double memory,
                const Work& work) {
  const auto rate = static_cast<double>(bytes) / shortest(work, 0.15);
  fmt::print("{:<22}{:>6}{:>12.1f}{:>11.0f} %\n", name, name_of(dtype), rate / 1e9,
             100.0 * rate / memory);
}

void norm_and_activation(const Shapes& s, DType dtype, double memory) {
  auto& stream = device::compute_stream();
  const auto [name, M, T, D, F, V, attention] = s;
  const auto E = attention.head_dim;
  const auto b = size_of(dtype);
  const RandomMatrix x(dtype, M, D), y(dtype, M, D), delta(dtype, M, D), w(dtype, 1, D);
  const RandomMatrix inverse(DType::f32, 1, M), dw(DType::f32, 1, D), table(DType::f32, T, E);
  const Tensor weight = Tensor(w).reshape({D});
  print_rate("rms_norm + residual", dtype, 4 * M * D * b, memory, [&] {
    ops::rms_norm(
        stream,
        {.x = x, .delta = delta, .sum = x, .w = weight, .eps = 1e-5F, .y = y, .inverse = inverse});
  });
  print_rate("rms_norm backward", dtype, 3 * M * D * b, memory, [&] {
    ops::rms_norm_backward(stream, {.x = x,
                                    .w = weight,
                                    .inverse = inverse,
                                    .dy = y,
                                    .dx = delta,
                                    .accumulate_dx = Accumulate::no,
                                    .dw = Tensor(dw).reshape({D}),
                                    .accumulate_dw = Accumulate::yes});
  });
  print_rate("rope", dtype, 2 * M * D * b, memory,
             [&] { ops::rope(stream, y, table, Tensor(), {T}, ops::Rotation::forward); });
  const RandomMatrix gate_up(dtype, M, 2 * F), out(dtype, M, F), dgate_up(dtype, M, 2 * F);
  print_rate("swiglu", dtype, 3 * M * F * b, memory,
             [&] { ops::activate(stream, out, gate_up, ops::Activation::swiglu); });
  print_rate("swiglu backward", dtype, 5 * M * F * b, memory, [&] {
    ops::activate_backward(stream, dgate_up, {}, out, gate_up, ops::Activation::swiglu);
  });
}

/// What linear layers in FP8 add: rounding by rows and by columns, and in the kernels before them.
void fp8_rounding(const Shapes& s, DType dtype, double memory) {
  auto& stream = device::compute_stream();
  const auto M = s.M, D = s.D, F = s.F, b = size_of(dtype);
  const RandomMatrix x(dtype, M, D), y(dtype, M, D), w(dtype, F, D), norm_weight(dtype, 1, D);
  const RandomMatrix gate_up(dtype, M, 2 * F), out(dtype, M, F), inverse(DType::f32, 1, M);
  const device::Buffer values(std::max(M, D) * F), scales(std::max({M, D, F}) * 4);
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) -> ops::Fp8Matrix {
    return {.values = values.tensor(DType::e4m3, {rows, cols}),
            .scales = scales.tensor(DType::f32, {rows})};
  };
  print_rate("fp8: rows", dtype, M * F * (b + 1), memory,
             [&] { ops::quantize_rows(stream, matrix(M, F), out); });
  print_rate("fp8: weight's columns", dtype, D * F * (2 * b + 1), memory,
             [&] { ops::quantize_columns(stream, matrix(D, F), w); });
  print_rate("fp8: swiglu", dtype, M * F * (3 * b + 1), memory, [&] {
    ops::activate_and_quantize(stream, out, matrix(M, F), gate_up, ops::Activation::swiglu);
  });
  print_rate("fp8: rms_norm", dtype, M * D * (2 * b + 1), memory, [&] {
    ops::rms_norm_and_quantize(
        stream,
        {.x = x, .w = Tensor(norm_weight).reshape({D}), .eps = 1e-5F, .y = y, .inverse = inverse},
        matrix(M, D));
  });
}

/// LayerNorm and GELU as in GPT-2, and RMSNorm per head as in Qwen 3, beside their Llama
/// counterparts.
void other_norms_and_activations(const Shapes& s, DType dtype, double memory) {
  auto& stream = device::compute_stream();
  const auto M = s.M, D = s.D, F = s.F, b = size_of(dtype);
  const RandomMatrix x(dtype, M, D), y(dtype, M, D), delta(dtype, M, D), w(dtype, 1, D);
  const RandomMatrix mean(DType::f32, 1, M), inverse(DType::f32, 1, M), dw(DType::f32, 1, D);
  const Tensor weight = Tensor(w).reshape({D}), gradient = Tensor(dw).reshape({D});
  print_rate("layer_norm + residual", dtype, 4 * M * D * b, memory, [&] {
    ops::layer_norm(stream, {.x = x,
                             .delta = delta,
                             .sum = x,
                             .w = weight,
                             .b = weight,
                             .eps = 1e-5F,
                             .y = y,
                             .mean = mean,
                             .inverse = inverse});
  });
  print_rate("layer_norm backward", dtype, 3 * M * D * b, memory, [&] {
    ops::layer_norm_backward(stream, {.x = x,
                                      .w = weight,
                                      .mean = mean,
                                      .inverse = inverse,
                                      .dy = y,
                                      .dx = delta,
                                      .accumulate_dx = Accumulate::no,
                                      .dw = gradient,
                                      .accumulate_dw = Accumulate::yes,
                                      .db = gradient,
                                      .accumulate_db = Accumulate::yes});
  });
  const auto E = s.attention.head_dim, heads = D / E;
  const RandomMatrix head_inverse(DType::f32, M, heads);
  const Tensor head_weight = weight.slice(0, E), head_gradient = gradient.slice(0, E);
  print_rate("rms_norm per head", dtype, 2 * M * D * b, memory, [&] {
    ops::rms_norm(stream,
                  {.x = x, .w = head_weight, .eps = 1e-5F, .y = y, .inverse = head_inverse});
  });
  print_rate("  backward", dtype, 3 * M * D * b, memory, [&] {
    ops::rms_norm_backward(stream, {.x = x,
                                    .w = head_weight,
                                    .inverse = head_inverse,
                                    .dy = y,
                                    .dx = y,
                                    .accumulate_dx = Accumulate::no,
                                    .dw = head_gradient,
                                    .accumulate_dw = Accumulate::yes});
  });
  const RandomMatrix up(dtype, M, F), out(dtype, M, F);
  print_rate("gelu", dtype, 2 * M * F * b, memory,
             [&] { ops::activate(stream, out, up, ops::Activation::gelu); });
  print_rate("gelu backward", dtype, 3 * M * F * b, memory,
             [&] { ops::activate_backward(stream, up, {}, out, up, ops::Activation::gelu); });
}

void vocabulary(const Shapes& s, DType dtype, double memory) {
  auto& stream = device::compute_stream();
  const auto V = s.V, D = s.D, chunk = std::min<std::int64_t>(s.M, 4096);
  const auto b = size_of(dtype);
  const RandomTokens tokens(chunk, V);
  const RandomMatrix logits(dtype, chunk, V), losses(DType::f32, 1, chunk);
  // The gradient overwrites the logits, so later calls read other values; that does not affect the
  // time.
  print_rate("cross_entropy", dtype, 3 * chunk * V * b, memory, [&] {
    ops::cross_entropy(stream, {.losses = losses,
                                .logits = logits,
                                .targets = tokens,
                                .gradient = ops::WithGradient::yes});
  });
  const RandomMatrix table(dtype, V, D), x(dtype, chunk, D), dtable(DType::f32, V, D);
  print_rate("embedding", dtype, 2 * chunk * D * b, memory,
             [&] { ops::embedding(stream, x, tokens, table, 0, Accumulate::no); });
  print_rate("embedding backward", dtype, V * D * 4 + chunk * D * b, memory,
             [&] { ops::embedding_backward(stream, dtable, x, tokens, 0, Accumulate::no); });
}

/// Tokens that take 2 of 8 experts each, M in all, and their order.
class Routing {
 public:
  explicit Routing(std::int64_t M)
      : experts_(M, num_experts),
        buffer_((num_experts + 1 + 2 * M) * 4),
        order_{.starts = take(0, num_experts + 1),
               .slots = take(num_experts + 1, M),
               .places = take(num_experts + 1 + M, M)} {
    ops::sort_by_expert(device::compute_stream(), order_, experts_);
  }
  static constexpr std::int64_t num_experts = 8;
  Tensor experts() const { return experts_; }
  const ops::ExpertOrder& order() const { return order_; }

 private:
  Tensor take(std::int64_t first, std::int64_t count) const {
    return buffer_.tensor(DType::i32, {buffer_.bytes() / 4}).slice(first, count);
  }
  RandomTokens experts_;
  device::Buffer buffer_;
  ops::ExpertOrder order_;
};

void routing(const Shapes& s, DType dtype, double memory) {
  auto& stream = device::compute_stream();
  const auto M = s.M / 2, D = s.D, N = Routing::num_experts;
  const Routing chosen(s.M);
  const RandomMatrix logits(DType::f32, M, N), probabilities(DType::f32, M, N);
  const RandomMatrix weights(DType::f32, M, 2), x(dtype, M, D), rows(dtype, 2 * M, D);
  const ops::RouteCall call{logits, probabilities, chosen.experts().reshape({M, 2}), weights, true};
  print_rate("dispatch_tokens", dtype, 3 * M * D * size_of(dtype), memory,
             [&] { ops::dispatch_tokens(stream, rows, x, chosen.order().slots); });
  print_rate("combine_tokens", dtype, 3 * M * D * size_of(dtype), memory, [&] {
    ops::combine_tokens(stream, x, rows, weights, chosen.order().places, Accumulate::no);
  });
  if (dtype != DType::f32) return;
  print_rate("route, sort_by_expert", dtype, M * (2 * N + 10) * 4, memory, [&] {
    ops::route(stream, call);
    ops::sort_by_expert(stream, chosen.order(), call.experts);
  });
}

void elementwise(double memory) {
  auto& stream = device::compute_stream();
  const std::int64_t n = stream.on_gpu() ? 1 << 28 : 1 << 24;
  const RandomMatrix p(DType::f32, 1, n), m(DType::f32, 1, n), g(DType::f32, 1, n);
  const RandomMatrix v(DType::f32, 1, n), half(DType::bf16, 1, n);
  ops::fill(stream, v, 0.1F);
  print_rate("copy", DType::f32, 8 * n, memory, [&] { ops::copy(stream, p, g); });
  print_rate("copy to bf16", DType::f32, 6 * n, memory, [&] { ops::copy(stream, half, g); });
  print_rate("add", DType::f32, 12 * n, memory, [&] { ops::add(stream, p, g); });
  print_rate("add of bf16", DType::f32, 10 * n, memory, [&] { ops::add(stream, p, half); });
  print_rate("scale", DType::f32, 8 * n, memory, [&] { ops::scale(stream, p, 0.999F); });
  print_rate("sum_of_squares", DType::f32, 4 * n, memory,
             [&] { ops::sum_of_squares(stream, {g}); });
  print_rate("largest_magnitude", DType::f32, 4 * n, memory,
             [&] { ops::largest_magnitude(stream, g); });
  print_rate("square_units", DType::f32, 4 * n, memory, [&] { ops::square_units(stream, g, 4); });
  print_rate("hash_elements", DType::f32, 4 * n, memory, [&] {
    ops::hash_elements(stream, g, {0, n, 0});
  });
  const ops::AdamwStep step{1e-3, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 1.0};
  ops::AdamwCall adamw{p, m, v, g};
  print_rate("adamw", DType::f32, 28 * n, memory, [&] { ops::adamw(stream, adamw, step); });
  adamw.copy = half;
  print_rate("adamw with bf16 copy", DType::f32, 30 * n, memory,
             [&] { ops::adamw(stream, adamw, step); });
}

/// Measures the products of 8 experts with M rows in all.
void grouped_products(const Shapes& s, DType dtype, double peak) {
  auto& stream = device::compute_stream();
  const auto N = Routing::num_experts;
  const Routing chosen(s.M);
  const Tensor starts = chosen.order().starts;
  const RandomMatrix x(dtype, s.M, s.D), y(dtype, s.M, s.F), w(dtype, N * s.F, s.D, 0.02F);
  const RandomMatrix dw(DType::f32, N * s.F, s.D);
  const auto stacked = [&](const Tensor& matrix) { return matrix.reshape({N, s.F, s.D}); };
  const auto print = [&](const char* name, const auto& work) {
    const auto rate = 2.0 * static_cast<double>(s.M * s.D * s.F) / shortest(work, 0.3);
    fmt::print("{:<22}{:>6}{:>12.1f}{:>11.0f} %\n", name, name_of(dtype), rate / 1e9,
               100.0 * rate / peak);
  };
  print("grouped_linear",
        [&] { ops::grouped_linear(stream, y, x, stacked(w), starts, Accumulate::no); });
  print("  backward, input", [&] {
    ops::grouped_linear_backward_input(stream, x, y, stacked(w), starts, Accumulate::no);
  });
  print("  backward, weight", [&] {
    ops::grouped_linear_backward_weight(stream, stacked(dw), y, x, starts, Accumulate::no);
  });
}

/// Measures causal attention. FLOPs: 2 matmuls forward, 5 backward, over the scores in the window,
/// T (T + 1) / 2 without, per head.
void attention(const ops::AttentionShape& s, DType dtype, double peak) {
  auto& stream = device::compute_stream();
  const auto M = s.batch * s.sequence;
  const auto q_cols = s.heads * s.head_dim, kv_cols = s.kv_heads * s.head_dim;
  const RandomMatrix qkv(dtype, M, q_cols + 2 * kv_cols), dqkv(dtype, M, q_cols + 2 * kv_cols);
  const RandomMatrix out(dtype, M, q_cols), dout(dtype, M, q_cols);
  const RandomMatrix log_sum_exp(DType::f32, s.batch * s.heads, s.sequence);
  const RandomMatrix delta(DType::f32, s.batch * s.heads, s.sequence);
  const auto q = [&](const Tensor& t) { return t.slice_cols(0, q_cols); };
  const auto k = [&](const Tensor& t) { return t.slice_cols(q_cols, kv_cols); };
  const auto v = [&](const Tensor& t) { return t.slice_cols(q_cols + kv_cols, kv_cols); };
  const auto hidden = s.window > 0 ? s.sequence - s.window : 0;
  const auto product = static_cast<double>(s.batch * s.heads * s.head_dim) *
                       static_cast<double>(s.sequence * (s.sequence + 1) - hidden * (hidden + 1));
  const ops::AttentionCall call{
      .shape = s, .q = q(qkv), .k = k(qkv), .v = v(qkv), .out = out, .log_sum_exp = log_sum_exp};
  const ops::AttentionGradients gradients{
      .dout = dout, .dq = q(dqkv), .dk = k(dqkv), .dv = v(dqkv), .delta = delta};
  const auto forward = shortest([&] { ops::attention(stream, call); }, 0.5);
  const auto backward = shortest([&] { ops::attention_backward(stream, call, gradients); }, 0.5);
  const auto print = [&](const char* name, double rate) {
    fmt::print("{:<22}{:>6}{:>12.1f}{:>11.0f} %\n", name, name_of(dtype), rate / 1e9,
               100.0 * rate / peak);
  };
  const auto window = s.window > 0 ? fmt::format(", {}", s.window) : "";
  print(fmt::format("attention, {}{}", s.sequence, window).c_str(), 2.0 * product / forward);
  print("  backward", 5.0 * product / backward);
  fmt::print("  {} x {}, heads of {}: {:.2f} and {:.2f} ms by {}\n", s.batch, s.sequence,
             s.head_dim, 1e3 * forward, 1e3 * backward, ops::attention_name(stream, call));
}

/// Returns the shapes to measure: a micro-batch, all its tokens in one row, without and with a
/// window, and on a GPU also Llama 3.2 1B's. There fp32 is untiled and slow: one short row.
std::vector<ops::AttentionShape> attention_shapes(const Shapes& s, DType dtype, bool on_gpu) {
  const auto [heads, kv_heads, head_dim] =
      std::array{s.attention.heads, s.attention.kv_heads, s.attention.head_dim};
  if (on_gpu && dtype == DType::f32) return {{1, s.T / 2, heads, kv_heads, head_dim}};
  std::vector<ops::AttentionShape> shapes{s.attention,
                                          {1, s.M, heads, kv_heads, head_dim},
                                          {1, s.M, heads, kv_heads, head_dim, /*window=*/256}};
  if (on_gpu) shapes.push_back({8, 4096, 32, 8, 64});
  return shapes;
}

/// Measures the same models' other kernels against memory bandwidth and FMA peak.
int bench_ops(const std::string& device) {
  use_single_device(device);
  const bool on_gpu = device::compute_stream().on_gpu();
  const Shapes& s = on_gpu ? of_8b : of_100m;
  const auto memory = measured_memory_rate();
  fmt::print("Kernels of {} ({} tokens) on {}; {} {:.1f} GB/s\n\n", s.name, s.M, where(),
             on_gpu ? "copies" : "triad", memory / 1e9);
  fmt::print("{:<22}{:>6}{:>12}{:>13}\n", "kernel", "type", "GB/s", "of that");
  elementwise(memory);
  for (const auto dtype : {DType::f32, DType::bf16}) {
    norm_and_activation(s, dtype, memory);
    other_norms_and_activations(s, dtype, memory);
    fp8_rounding(s, dtype, memory);
    vocabulary(s, dtype, memory);
    routing(s, dtype, memory);
  }
  fmt::print("Above 100 % the data stay in the last-level cache.\n");
  const auto peak = [&](DType dtype) {
    return on_gpu ? measured_gemm_rate(dtype) : measured_fma_rate();
  };
  for (const auto dtype : {DType::f32, DType::bf16}) {
    const double most = peak(dtype);
    fmt::print(
        "\n{} {:.0f} GFLOP/s; {} experts, {} rows; causal attention, {} heads of {}, {} tokens\n",
        on_gpu ? "GEMM" : "fp32 FMA peak", most / 1e9, Routing::num_experts, s.M, s.attention.heads,
        s.attention.head_dim, s.attention.sequence);
    fmt::print("{:<22}{:>6}{:>12}{:>13}\n", "kernel", "type", "GFLOP/s", "of that");
    grouped_products(s, dtype, most);
    for (const auto& shape : attention_shapes(s, dtype, on_gpu)) attention(shape, dtype, most);
  }
  return 0;
}

}  // namespace

void declare_bench_ops(CLI::App& bench, Run& chosen) {
  declare_on_device(bench, chosen, "ops", "Compare every other kernel with its limit", bench_ops);
}

}  // namespace llamesh::app
