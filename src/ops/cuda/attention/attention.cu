#include "ops/cuda/attention/attention_choice.hpp"
#include "ops/cuda/attention/attention_rows.cuh"
#include "ops/cuda/attention/cudnn_attention.hpp"
#include "ops/cuda/reduce.cuh"

namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;

/// One warp per token and head. Memory-bound: reads out and dout once.
template <class T>
__global__ void __launch_bounds__(threads) row_products(AttentionRows<T> a, std::int64_t count) {
  const auto row = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (row >= count) return;
  const auto token = row / a.heads;
  const int head = static_cast<int>(row % a.heads);
  const T* out = a.out[token] + head * a.head_dim;
  const T* dout = a.dout[token] + head * a.head_dim;
  float sum = 0;
  for (int e = threadIdx.x % 32; e < a.head_dim; e += 32)
    sum += load_one(out + e) * load_one(dout + e);
  sum = warp_sum(sum);
  const int batch = static_cast<int>(token / a.sequence);
  if (threadIdx.x % 32 == 0) a.delta[a.statistics(batch, head) + token % a.sequence] = sum;
}

void expect_shapes(const AttentionCall& c) {
  const auto& s = c.shape;
  const auto tokens = s.batch * s.sequence;
  expects(s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "attention: {} heads share {} key-value heads", s.heads, s.kv_heads);
  expects(c.q.rows() == tokens && c.q.cols() == s.heads * s.head_dim && c.k.rows() == tokens &&
              c.k.cols() == s.kv_heads * s.head_dim && same_matrix_shape(c.k, c.v),
          "attention: q ({}, {}), k ({}, {}) of {} tokens", c.q.rows(), c.q.cols(), c.k.rows(),
          c.k.cols(), tokens);
  expects(same_matrix_shape(c.out, c.q) && c.log_sum_exp.numel() == s.heads * tokens,
          "attention: out ({}, {}), {} sums", c.out.rows(), c.out.cols(), c.log_sum_exp.numel());
  expects(!c.document_starts || c.document_starts.numel() == tokens,
          "attention: {} tokens, {} document starts", tokens, c.document_starts.numel());
  expects(s.head_dim > 0 && s.head_dim <= max_head_dim,
          "attention on a GPU: a head dim of {}, at most {}", s.head_dim, max_head_dim);
}

void expect_shapes(const AttentionCall& c, const AttentionGradients& g) {
  expects(same_matrix_shape(g.dq, c.q) && same_matrix_shape(g.dk, c.k) &&
              same_matrix_shape(g.dv, c.k) && same_matrix_shape(g.dout, c.q) &&
              g.delta.numel() == c.log_sum_exp.numel(),
          "attention_backward shapes");
  expects(
      !g.cos_sin || (g.cos_sin.rows() == c.shape.sequence && g.cos_sin.cols() == c.shape.head_dim),
      "attention_backward: {} positions, cosines and sines of {}", c.shape.sequence,
      g.cos_sin ? g.cos_sin.rows() : 0);
}

/// Rotates the gradients back, for kernels that do not fuse it.
void rope_backward(Stream& stream, const AttentionCall& c, const AttentionGradients& g) {
  if (!g.cos_sin) return;
  for (const Tensor& d : {g.dq, g.dk})
    rope(stream, d, g.cos_sin, c.document_starts, c.shape.head_dim, Rotation::backward);
}

}  // namespace

bool can_use_mma(const AttentionCall& c, const AttentionGradients& g) {
  const auto e = c.shape.head_dim;
  return c.q.dtype() == DType::bf16 && (e == 64 || e == 128) &&
         aligned(c.q, c.k, c.v, c.out, g.dq, g.dk, g.dv, g.dout);
}

bool can_use_wgmma(const AttentionCall& call, const AttentionGradients& gradients) {
  return can_use_mma(call, gradients) && has_wgmma() &&
         attention_choice(pass_of(gradients)) != AttentionChoice::mma;
}

void attention_delta(Stream& stream, const AttentionCall& call,
                     const AttentionGradients& gradients) {
  const auto count = call.q.rows() * call.shape.heads;
  with_type(call.q.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&row_products<T>, {divide_up(count, warps)}, threads, 0, stream,
           attention_rows<T>(call, gradients), count);
  });
}

void attention(Stream& stream, const AttentionCall& call) {
  expect_shapes(call);
  if (call.q.numel() == 0) return;
  if (can_use_cudnn(call))
    cudnn_attention(stream, call);
  else if (can_use_wgmma(call))
    wgmma_attention(stream, call);
  else if (can_use_mma(call))
    mma_attention(stream, call);
  else
    plain_attention(stream, call);
}

void attention_backward(Stream& stream, const AttentionCall& call,
                        const AttentionGradients& gradients) {
  expect_shapes(call);
  expect_shapes(call, gradients);
  if (call.q.numel() == 0) return;
  if (can_use_cudnn(call, gradients)) {
    cudnn_attention(stream, call, gradients);
    return rope_backward(stream, call, gradients);
  }
  attention_delta(stream, call, gradients);
  if (can_use_wgmma(call, gradients)) return wgmma_attention_backward(stream, call, gradients);
  if (can_use_mma(call, gradients)) return mma_attention_backward(stream, call, gradients);
  plain_attention_backward(stream, call, gradients);
  rope_backward(stream, call, gradients);
}

std::string attention_name(Stream& /*stream*/, const AttentionCall& call) {
  const auto name = [&](const AttentionGradients& gradients) -> std::string {
    if (can_use_cudnn(call, gradients)) return attention_library();
    if (can_use_wgmma(call, gradients)) return "built-in kernels by wgmma";
    return can_use_mma(call, gradients) ? "built-in kernels by mma" : "plain built-in kernels";
  };
  const auto forward = name({});
  const auto backward =
      name({.dout = call.out, .dq = call.q, .dk = call.k, .dv = call.v, .delta = {}});
  return forward == backward ? forward : forward + ", backward " + backward;
}

}  // namespace LLAMESH_OPS_CUDA
