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
  const T* out = a.out[token] + head * a.value_dim;
  const T* dout = a.dout[token] + head * a.value_dim;
  float sum = 0;
  for (int e = threadIdx.x % 32; e < a.value_dim; e += 32)
    sum += load_one(out + e) * load_one(dout + e);
  sum = warp_sum(sum);
  const int batch = static_cast<int>(token / a.sequence);
  if (threadIdx.x % 32 == 0) a.delta[a.statistics(batch, head) + token % a.sequence] = sum;
}

void expect_shapes(const AttentionCall& c) {
  const auto& s = c.shape;
  const auto tokens = s.batch * s.sequence, keys = s.batch * s.keys;
  expects(s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "attention: {} heads share {} key-value heads", s.heads, s.kv_heads);
  expects(c.q.rows() == tokens && c.q.cols() == s.heads * s.head_dim && c.k.rows() == keys &&
              c.k.cols() == s.kv_heads * s.head_dim && c.v.rows() == keys &&
              c.v.cols() == s.kv_heads * s.value_dim,
          "attention: q ({}, {}), k ({}, {}), v ({}, {}) of {} tokens and {} keys", c.q.rows(),
          c.q.cols(), c.k.rows(), c.k.cols(), c.v.rows(), c.v.cols(), tokens, keys);
  expects(c.out.rows() == tokens && c.out.cols() == s.heads * s.value_dim &&
              c.log_sum_exp.numel() == s.heads * tokens,
          "attention: out ({}, {}), {} sums", c.out.rows(), c.out.cols(), c.log_sum_exp.numel());
  expects(!c.document_starts || c.document_starts.numel() == tokens,
          "attention: {} tokens, {} document starts", tokens, c.document_starts.numel());
  expects(s.positions.tokens == s.sequence && s.positions[s.sequence - 1] < s.keys,
          "attention: {} queries in positions of {}, up to {}, and {} keys", s.sequence,
          s.positions.tokens, s.positions[s.sequence - 1], s.keys);
  expects(s.head_dim > 0 && s.head_dim <= max_head_dim && s.value_dim > 0 &&
              s.value_dim <= max_head_dim,
          "attention on a GPU: a head dim of {}, {} of a value, at most {}", s.head_dim,
          s.value_dim, max_head_dim);
}

void expect_shapes(const AttentionCall& c, const AttentionGradients& g) {
  expects(same_matrix_shape(g.dq, c.q) && same_matrix_shape(g.dk, c.k) &&
              same_matrix_shape(g.dv, c.v) && same_matrix_shape(g.dout, c.out) &&
              g.delta.numel() == c.log_sum_exp.numel(),
          "attention_backward shapes");
  expects(!g.cos_sin || (c.shape.keys == c.shape.sequence && g.cos_sin.rows() == c.shape.sequence &&
                         g.cos_sin.cols() == c.shape.head_dim),
          "attention_backward: {} positions, cosines and sines of {}", c.shape.sequence,
          g.cos_sin ? g.cos_sin.rows() : 0);
}

/// Rotates the gradients back, for kernels that do not fuse it.
void rope_backward(Stream& stream, const AttentionCall& c, const AttentionGradients& g) {
  if (!g.cos_sin) return;
  for (const Tensor& d : {g.dq, g.dk})
    rope(stream, d, g.cos_sin, c.document_starts, c.shape.positions, Rotation::backward);
}

/// `none`: not called yet.
enum class Implementation : std::uint8_t { none, cudnn, wgmma, mma, plain };

/// Used by the last call of each pass, from the thread that owns the compute stream. All calls in
/// a run have one shape, except those for evaluations.
struct {
  Implementation forward = Implementation::none, backward = Implementation::none;
} used;

Implementation choose(const AttentionCall& call, const AttentionGradients& gradients = {}) {
  const bool by_wgmma = can_use_wgmma(call, gradients);
  if (tries_cudnn(pass_of(gradients), attention_choice(pass_of(gradients)), by_wgmma) &&
      can_use_cudnn(call, gradients))
    return Implementation::cudnn;
  if (by_wgmma) return Implementation::wgmma;
  return can_use_mma(call, gradients) ? Implementation::mma : Implementation::plain;
}

std::string name_of(Implementation implementation) {
  switch (implementation) {
    case Implementation::cudnn:
      return attention_library();
    case Implementation::wgmma:
      return "built-in kernels by wgmma";
    case Implementation::mma:
      return "built-in kernels by mma";
    case Implementation::plain:
      return "plain built-in kernels";
    default:
      return "";
  }
}

std::string name_of(Implementation forward, Implementation backward) {
  if (forward == backward || backward == Implementation::none) return name_of(forward);
  return name_of(forward) + ", backward " + name_of(backward);
}

}  // namespace

bool can_use_mma(const AttentionCall& c, const AttentionGradients& g) {
  const auto e = c.shape.head_dim, v = c.shape.value_dim;
  const bool has_tiles = e == v ? e == 64 || e == 128 : e == 192 && v == 128;
  return c.q.dtype() == DType::bf16 && has_tiles &&
         aligned(c.q, c.k, c.v, c.out, g.dq, g.dk, g.dv, g.dout) &&
         (pass_of(g) == AttentionPass::forward || mma_attention_backward_fits(e));
}

bool can_use_wgmma(const AttentionCall& call, const AttentionGradients& gradients) {
  return can_use_mma(call, gradients) && has_wgmma() && call.shape.softcap == 0 &&
         call.shape.value_dim == call.shape.head_dim &&
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
  const auto chosen = choose(call);
  used.forward = chosen;
  switch (chosen) {
    case Implementation::cudnn:
      return cudnn_attention(stream, call);
    case Implementation::wgmma:
      return wgmma_attention(stream, call);
    case Implementation::mma:
      return mma_attention(stream, call);
    default:
      return plain_attention(stream, call);
  }
}

void attention_backward(Stream& stream, const AttentionCall& call,
                        const AttentionGradients& gradients) {
  expect_shapes(call);
  expect_shapes(call, gradients);
  if (call.q.numel() == 0) return;
  const auto chosen = choose(call, gradients);
  used.backward = chosen;
  if (chosen == Implementation::cudnn) {
    cudnn_attention(stream, call, gradients);
    return rope_backward(stream, call, gradients);
  }
  attention_delta(stream, call, gradients);
  if (chosen == Implementation::wgmma) return wgmma_attention_backward(stream, call, gradients);
  if (chosen == Implementation::mma) return mma_attention_backward(stream, call, gradients);
  plain_attention_backward(stream, call, gradients);
  rope_backward(stream, call, gradients);
}

std::string attention_name(Stream& /*stream*/, const AttentionCall& call) {
  return name_of(
      choose(call),
      choose(call, {.dout = call.out, .dq = call.q, .dk = call.k, .dv = call.v, .delta = {}}));
}

std::string used_attention() {
  return name_of(used.forward, used.backward);
}

}  // namespace LLAMESH_OPS_CUDA
