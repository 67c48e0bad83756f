#include "ops/cpu/gemm.hpp"
#include "ops/cpu/scratch_bytes.hpp"
#include "ops/cuda/gemm/gemm.hpp"
#include "ops/simulated/kernels.hpp"

namespace llamesh::ops::simulated {
namespace {

using cpu::Matrix;

/// Counts scratch that cpu::gemm() and cuda::gemm() keep.
void keep_gemm_scratch(const Matrix& c, const Matrix& a, const Matrix& b, Accumulate accumulate,
                       cpu::Ragged ragged = {}) {
  auto& simulation = device::Simulation::current();
  if (c.rows * c.cols * a.cols == 0) return;
  if (hardware().kind == device::Kind::cuda)
    return simulation.keep_scratch("gemm", cuda::gemm_workspace_bytes);
  const auto scratch =
      cpu::gemm_scratch(c, a, b, accumulate, hardware().threads, bf16_products(), ragged);
  simulation.keep_scratch("gemm a", scratch.a);
  simulation.keep_scratch("gemm b", scratch.b);
  simulation.keep_scratch("gemm c", scratch.c);
  simulation.keep_scratch("gemm", scratch.library);
}

/// c (m, n) = or += a b, contracted over k.
void gemm(Stream& stream, const Tensor& c, const Tensor& a, const Tensor& b, std::int64_t k,
          Accumulate accumulate) {
  const double flops = 2.0 * static_cast<double>(c.numel()) * static_cast<double>(k);
  const double rate = hardware().peak(a.dtype()) * hardware().gemm_share;
  const double again = accumulate == Accumulate::yes ? bytes_of(c) : 0;
  work(stream, flops, rate, bytes_of(a, b, c) + again,
       static_cast<double>(std::min({c.rows(), c.cols(), k})));
}

/// Returns the rows that the tiles of a GPU's grouped kernels cover if `rows` are split into
/// groups: each group that is not empty ends with a tile that is half full on average.
double tiled_rows(std::int64_t rows, std::int64_t groups, int tile) {
  const auto all = static_cast<double>(rows);
  if (hardware().kind == device::Kind::cpu) return all;
  return all + static_cast<double>(std::min(rows, groups)) * (tile - 1) / 2;
}

// Tiles of the grouped kernels on GPUs (ops/cuda).
constexpr int group_rows = 128;  // of c
constexpr int group_depth = 64;  // steps, if the rows are contracted over

/// Multiplies the rows of `in`, in groups, by matrices `w` (experts, ...), each of which is read.
void grouped_gemm(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& w,
                  Accumulate accumulate) {
  const double rows = tiled_rows(in.rows(), w.size(0), group_rows);
  const double flops = 2 * rows * static_cast<double>(out.cols()) * static_cast<double>(in.cols());
  const double again = accumulate == Accumulate::yes ? bytes_of(out) : 0;
  work(stream, flops, hardware().peak(in.dtype()) * hardware().gemm_share,
       bytes_of(in, w, out) + again,
       static_cast<double>(std::min({in.rows() / w.size(0), out.cols(), in.cols()})));
}

/// Returns an FP8 operand as it is multiplied without FP8 units, and counts its memory.
Tensor dequantized(const Fp8Matrix& q, DType dtype, const char* name) {
  device::Simulation::current().keep_scratch(name, cpu::dequantized_scratch(q.values, dtype));
  return shaped_like(q.values, dtype, q.values.data());  // never read
}

/// Returns the FLOPs for the two matmuls in attention between `queries` and, on average, `keys`
/// visible keys.
double attention_flops(const AttentionShape& s, std::int64_t queries, double keys) {
  return 2.0 * static_cast<double>(s.batch * s.heads * (s.head_dim + s.value_dim)) *
         static_cast<double>(queries) * keys;
}

/// Returns the keys that a query sees on average, of `queries` neighbors after `past` earlier
/// keys: integrated over the queries, so half as many as there are in a causal row.
double mean_keys(std::int64_t queries, std::int64_t window, std::int64_t past) {
  const auto T = static_cast<double>(queries), W = static_cast<double>(window);
  const auto causal = static_cast<double>(past) + T / 2;
  if (window == 0 || window >= past + queries) return causal;
  // Query i has fewer than W keys if i < W - past.
  const auto filling = std::clamp(W - static_cast<double>(past), 0.0, T);
  return W - filling * filling / (2 * T);
}

double mean_keys(const AttentionShape& s) {
  const auto& p = s.positions;
  if (p.adjoin()) return mean_keys(s.sequence, s.window, p.first);
  const auto half = s.sequence / 2;
  return (mean_keys(half, s.window, p.first) + mean_keys(half, s.window, p.second)) / 2;
}

}  // namespace

void linear(Stream& stream, Tensor y, Tensor x, Tensor w, Accumulate accumulate) {
  if (x.rows() == 1 && hardware().kind == device::Kind::cpu)
    keep_cpu_scratch("matvec", cpu::matvec_scratch(x));
  else
    keep_gemm_scratch(Matrix(y), Matrix(x), Matrix(w).transposed(), accumulate);
  gemm(stream, y, x, w, x.cols(), accumulate);
}

void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Accumulate accumulate) {
  keep_gemm_scratch(Matrix(dx), Matrix(dy), Matrix(w), accumulate);
  gemm(stream, dx, dy, w, dy.cols(), accumulate);
}

void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Accumulate accumulate) {
  keep_gemm_scratch(Matrix(dw), Matrix(dy).transposed(), Matrix(x), accumulate);
  gemm(stream, dw, dy, x, dy.rows(), accumulate);
}

void grouped_linear(Stream& stream, Tensor y, Tensor x, Tensor w, Tensor /*starts*/,
                    Accumulate accumulate) {
  const auto one = w.slice_rows(0, w.size(1));
  keep_gemm_scratch(Matrix(y), Matrix(x), Matrix(one).transposed(), accumulate,
                    {cpu::Ragged::Size::m, x.rows()});
  grouped_gemm(stream, y, x, w, accumulate);
}

void grouped_linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w,
                                   Tensor /*starts*/, Accumulate accumulate) {
  keep_gemm_scratch(Matrix(dx), Matrix(dy), Matrix(w.slice_rows(0, w.size(1))), accumulate,
                    {cpu::Ragged::Size::m, dy.rows()});
  grouped_gemm(stream, dx, dy, w, accumulate);
}

void grouped_linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x,
                                    Tensor /*starts*/, Accumulate accumulate) {
  const auto one = dw.slice_rows(0, dw.size(1));
  keep_gemm_scratch(Matrix(one), Matrix(dy).transposed(), Matrix(x), accumulate,
                    {cpu::Ragged::Size::k, x.rows()});
  const double rows = tiled_rows(dy.rows(), dw.size(0), group_depth);
  const double flops = 2 * rows * static_cast<double>(one.numel());
  const double again = accumulate == Accumulate::yes ? bytes_of(dw) : 0;
  work(stream, flops, hardware().peak(dy.dtype()) * hardware().gemm_share,
       bytes_of(dw, dy, x) + again,
       static_cast<double>(std::min({dy.rows() / dw.size(0), one.rows(), one.cols()})));
}

void linear_fp8(Stream& stream, Tensor y, const Fp8Matrix& x, const Fp8Matrix& w,
                Accumulate accumulate) {
  const auto multiply = [&](const Tensor& left, const Tensor& right) {
    keep_gemm_scratch(Matrix(y), Matrix(left), Matrix(right).transposed(), accumulate);
    gemm(stream, y, left, right, left.cols(), accumulate);
  };
  const bool has_units = hardware().kind == device::Kind::cuda && hardware().peak_fp8 > 0;
  if (has_units) return multiply(x.values, w.values);
  multiply(dequantized(x, y.dtype(), "fp8 x"), dequantized(w, y.dtype(), "fp8 w"));
}

/// GPUs have no FP8 kernel for experts.
void grouped_linear_fp8(Stream& stream, Tensor y, const Fp8Matrix& x, const Fp8Matrix& w,
                        Tensor starts, Accumulate accumulate) {
  grouped_linear(stream, y, dequantized(x, y.dtype(), "fp8 x"), dequantized(w, y.dtype(), "fp8 w"),
                 starts, accumulate);
}

void attention(Stream& stream, const AttentionCall& c) {
  keep_cpu_scratch("attention", cpu::attention_scratch(c.shape, hardware().threads));
  const double keys = mean_keys(c.shape);
  work(stream, attention_flops(c.shape, c.shape.sequence, keys),
       hardware().peak(c.q.dtype()) * hardware().attention_forward_share,
       bytes_of(c.q, c.k, c.v, c.out, c.log_sum_exp), static_cast<double>(c.shape.sequence));
}

/// Five matmuls, three over E; the forward pass has two (Dao 2023).
void attention_backward(Stream& stream, const AttentionCall& c, const AttentionGradients& g) {
  keep_cpu_scratch("attention_backward",
                   cpu::attention_backward_scratch(c.shape, hardware().threads));
  const double keys = mean_keys(c.shape);
  const auto& s = c.shape;
  const auto E = static_cast<double>(s.head_dim), V = static_cast<double>(s.value_dim);
  work(stream, (3 * E + 2 * V) / (E + V) * attention_flops(s, s.sequence, keys),
       hardware().peak(c.q.dtype()) * hardware().attention_backward_share,
       bytes_of(c.q, c.k, c.v, c.out, c.log_sum_exp, g.dout, g.dq, g.dk, g.dv, g.delta),
       static_cast<double>(c.shape.sequence));
  // Backends that do not fuse it rotate the gradients afterwards; a measured time includes it.
  if (g.cos_sin && !hardware().is_measured())
    move(stream, 2 * bytes_of(g.dq, g.dk) + bytes_of(g.cos_sin, c.document_starts));
}

std::string attention_name(Stream& /*stream*/, const AttentionCall& /*call*/) {
  return "simulated";
}

void cached_attention(Stream& stream, const AttentionCall& c, std::int64_t past) {
  const AttentionShape& s = c.shape;
  work(stream, attention_flops(s, s.sequence, mean_keys(s.sequence, s.window, past)),
       hardware().peak(c.q.dtype()) * hardware().attention_forward_share,
       bytes_of(c.out, c.q, c.k, c.v), static_cast<double>(past + s.sequence));
}

}  // namespace llamesh::ops::simulated
