#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/accumulate.hpp"
#include "core/tensor.hpp"
#include "device/stream.hpp"

/// Every kernel of llamesh, declared once.
///
/// B batch, T sequence, M = B T tokens, D hidden, H heads, K key-value heads, E head dim,
/// F intermediate, V vocabulary.
///
/// Kernels read and write views that others own and return when the work is in `stream`.
/// Activations and parameters are fp32 or bf16, all of one call the same unless said otherwise;
/// statistics, sums and softmax are fp32. Rows may be strided (Tensor::row_stride) where a
/// parameter says "rows". Where an argument is a gradient with an Accumulate, `yes` adds to it and
/// `no` overwrites it. Threads: OpenMP's; results do not depend on their number except in the last
/// bits of GEMMs.
namespace llamesh::ops {

using device::Stream;

// --- Linear layers (GEMM). x (M, in) rows, w (out, in) dense, y (M, out) rows. ---

/// y = x w^T, or y += x w^T. y may be fp32 where x and w are bf16.
void linear(Stream& stream, Tensor y, Tensor x, Tensor w, Accumulate accumulate = Accumulate::no);
/// dx (M, in) = or += dy (M, out) w.
void linear_backward_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Accumulate accumulate);
/// dw (out, in) = or += dy^T x. dw is fp32 or bf16, whatever the others are.
void linear_backward_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Accumulate accumulate);

// --- Embedding. tokens (M) int32, table (V, D). ---

/// out (M, D) = table[tokens].
void embedding(Stream& stream, Tensor out, Tensor tokens, Tensor table);
/// dtable (V, D) = or += the sums of dout over equal tokens, in token order (deterministic). dtable
/// fp32 or bf16.
void embedding_backward(Stream& stream, Tensor dtable, Tensor dout, Tensor tokens,
                        Accumulate accumulate);

// --- RMSNorm: y = x / sqrt(mean(x^2) + eps) * w (Zhang & Sennrich 2019). x (M, D), w (D). ---

/// y (M, D); inverse_rms (M) fp32 is kept for the backward pass. With `delta`, first
/// sum (M, D) = x + delta, and the norm is that of sum; `sum` may be `x`. Without: empty Tensors.
void rms_norm(Stream& stream, Tensor y, Tensor inverse_rms, Tensor sum, Tensor x, Tensor delta,
              Tensor w, float eps);
/// dx (M, D) = or += the gradient for x; dw (D) fp32 or bf16 = or += that for w.
/// `x` is what was normalised (`sum` above).
void rms_norm_backward(Stream& stream, Tensor dx, Accumulate accumulate_dx, Tensor dw,
                       Accumulate accumulate_dw, Tensor dy, Tensor x, Tensor inverse_rms, Tensor w);

// --- Documents packed into rows of T tokens: rope and attention treat each as a row of its own.
// document_starts (B, T) int32: the index in its row of the first token of each token's document,
// so either that of the token before or the token's own. Empty: a row is one document. ---

// --- Rotary embedding, the halves convention of Hugging Face: (x1, x2) -> (x1 c - x2 s, x2 c + x1
// s). ---

/// Rotates `heads` heads of E elements in place; x (M, heads * E) rows; token m stands at position
/// m % T - document_starts[m]. cos_sin (T, E) fp32: E/2 cosines, then E/2 sines of each position.
enum class Rotation : bool { forward, backward };
void rope(Stream& stream, Tensor x, Tensor cos_sin, Tensor document_starts, std::int64_t head_dim,
          Rotation rotation);

// --- Causal grouped-query attention within documents; never holds a T x T matrix
// (FlashAttention-2, Dao 2023). Its cost falls with the length of the documents. ---

struct AttentionShape {
  std::int64_t batch;     ///< B
  std::int64_t sequence;  ///< T
  std::int64_t heads;     ///< H
  std::int64_t kv_heads;  ///< K, divides H
  std::int64_t head_dim;  ///< E
};
/// out (M, H E) rows; q (M, H E), k, v (M, K E) rows; log_sum_exp (B, H, T) fp32 is kept for the
/// backward pass. Query i of a row sees keys document_starts[i] to i. Scores are scaled by
/// 1 / sqrt(E).
void attention(Stream& stream, Tensor out, Tensor log_sum_exp, Tensor q, Tensor k, Tensor v,
               Tensor document_starts, const AttentionShape& shape);
/// dq, dk, dv overwritten, shaped as q, k, v. `delta` (B, H, T) fp32 is scratch: rowsum(dout *
/// out).
void attention_backward(Stream& stream, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor q,
                        Tensor k, Tensor v, Tensor out, Tensor log_sum_exp, Tensor delta,
                        Tensor document_starts, const AttentionShape& shape);

/// What computes attention() of these tensors: "cuDNN 9.19.0", "built-in kernels on tensor cores",
/// ...
std::string attention_name(Stream& stream, Tensor out, Tensor q, Tensor k, Tensor v,
                           Tensor document_starts, const AttentionShape& shape);
/// What GPUs compute attention with where they can: "cuDNN 9.19.0", or "built-in kernels" and why.
/// Empty in a build without CUDA.
std::string gpu_attention();

/// Attention of new tokens over a cache, for inference: query i of M stands at position past + i
/// and sees keys 0 to past + i. out, q (M, H E) rows; keys, values (>= past + M, K E) rows. `shape`
/// has batch 1 and sequence M.
void cached_attention(Stream& stream, Tensor out, Tensor q, Tensor keys, Tensor values,
                      const AttentionShape& shape, std::int64_t past);

// --- SwiGLU (Shazeer 2020). gate_up (M, 2 F): gate in the first F columns, up in the others. ---

/// out (M, F) = silu(gate) * up.
void swiglu(Stream& stream, Tensor out, Tensor gate_up);
/// dgate_up (M, 2 F) overwritten; it may be gate_up itself.
void swiglu_backward(Stream& stream, Tensor dgate_up, Tensor dout, Tensor gate_up);

// --- Cross-entropy fused with its gradient. logits (M, V), targets (M) int32, negative: ignored.
// ---

/// losses (M) fp32 = log(sum(exp(logits))) - logits[target], 0 where ignored.
/// With WithGradient::yes, logits are overwritten by scale * d(sum of losses)/d(logits).
enum class WithGradient : bool { no, yes };
void cross_entropy(Stream& stream, Tensor losses, Tensor logits, Tensor targets, float scale,
                   WithGradient gradient);

// --- Elementwise, dense tensors. ---

/// y = x, cast to y's dtype.
void copy(Stream& stream, Tensor y, Tensor x);
/// y += x, x cast to y's dtype.
void add(Stream& stream, Tensor y, Tensor x);
void fill(Stream& stream, Tensor y, float value);
void scale(Stream& stream, Tensor y, float factor);
/// Sum of squares of fp32 x, summed in double in an order that depends on numel alone. Waits for
/// the stream.
double sum_of_squares(Stream& stream, Tensor x);

// --- Optimizers, one pass over fp32 views of equal numel. ---

/// Numbers of one AdamW step (Loshchilov & Hutter 2019), as in torch.optim.AdamW. In double, as
/// torch has them: 1 - beta of a rounded beta is off, by 1.7e-4 of itself for 0.9999.
struct AdamwStep {
  double lr, beta1, beta2, eps, weight_decay;
  double correction1;     ///< 1 - beta1^t
  double correction2;     ///< 1 - beta2^t
  double gradient_scale;  ///< clip factor, folded in
};
void adamw(Stream& stream, Tensor parameter, Tensor exp_avg, Tensor exp_avg_sq, Tensor gradient,
           const AdamwStep& step);

/// Numbers of one SGD step with momentum as in torch.optim.SGD (no dampening, no Nesterov).
struct SgdStep {
  float lr, momentum, weight_decay, gradient_scale;
};
void sgd(Stream& stream, Tensor parameter, Tensor momentum_buffer, Tensor gradient,
         const SgdStep& step);

/// What oneDNN uses of this CPU: "avx512_core_amx", "avx512_core_bf16", ...
const char* instruction_set();

}  // namespace llamesh::ops
