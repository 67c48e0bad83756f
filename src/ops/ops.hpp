#pragma once

#include <cstdint>
#include <string>

#include "ops/calls.hpp"
#include "ops/kernel.hpp"

/// Every kernel of llamesh, declared once; kernels.inc lists their names.
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

// --- Linear layers (GEMM). x (M, in) rows, w (out, in) rows, y (M, out) rows. ---

/// y = x w^T, or y += x w^T. y may be fp32 where x and w are bf16.
extern const Kernel<void(Stream&, Tensor y, Tensor x, Tensor w, Accumulate accumulate)> linear;
/// dx (M, in) = or += dy (M, out) w.
extern const Kernel<void(Stream&, Tensor dx, Tensor dy, Tensor w, Accumulate accumulate)>
    linear_backward_input;
/// dw (out, in) rows = or += dy^T x. dw is fp32 or bf16, whatever the others are; on a GPU it is
/// dense where it is bf16 and they are fp32.
extern const Kernel<void(Stream&, Tensor dw, Tensor dy, Tensor x, Accumulate accumulate)>
    linear_backward_weight;

// --- Embedding. tokens (M) int32; table (rows, D) holds rows [first_row, first_row + rows) of the
// vocabulary: all of it, or the part of one rank (Megatron's VocabParallelEmbedding). ---

/// out (M, D) = table[tokens - first_row], zeros where a token is not of this part.
extern const Kernel<void(Stream&, Tensor out, Tensor tokens, Tensor table, std::int64_t first_row)>
    embedding;
/// dtable (rows, D) = or += the sums of dout over equal tokens, in token order (deterministic).
/// dtable fp32 or bf16.
extern const Kernel<void(Stream&, Tensor dtable, Tensor dout, Tensor tokens, std::int64_t first_row,
                         Accumulate accumulate)>
    embedding_backward;

// --- RMSNorm: y = x / sqrt(mean(x^2) + eps) * w (Zhang & Sennrich 2019). ---

/// With a delta, first sum = x + delta, and y is the norm of sum.
extern const Kernel<void(Stream&, const RmsNormCall& call)> rms_norm;
/// dx = or += the gradient for x, dw = or += that for w.
extern const Kernel<void(Stream&, const RmsNormBackwardCall& call)> rms_norm_backward;

// --- The same where t ranks have D columns each of rows of t D: sums over rows are gathered
// between two kernels, of which the second takes them as row_sums and adds them up in rank order.
// ---

/// sums (M) fp32 = the sums of squares of this rank's columns, of x + delta, written to `sum`,
/// where there is a delta; `sum` is the x of rms_norm() then.
extern const Kernel<void(Stream&, const RmsNormCall& call, Tensor sums)> rms_norm_row_sums;
/// sums (M) fp32 = of each row the sum of dy w x / rms over this rank's columns.
extern const Kernel<void(Stream&, const RmsNormBackwardCall& call, Tensor sums)>
    rms_norm_backward_row_sums;

// --- Documents packed into rows of T tokens: rope and attention treat each as a row of its own.
// document_starts (B, T) int32: the index in its row of the first token of each token's document,
// so either that of the token before or the token's own. Empty: a row is one document. ---

// --- Rotary embedding, the halves convention of Hugging Face: (x1, x2) -> (x1 c - x2 s, x2 c + x1
// s). ---

enum class Rotation : bool { forward, backward };
/// Rotates the heads of E = head_dim elements in place; x (M, heads * E) rows; token m stands at
/// position m % T - document_starts[m]. cos_sin (T, E) fp32: E/2 cosines, then E/2 sines of each
/// position.
extern const Kernel<void(Stream&, Tensor x, Tensor cos_sin, Tensor document_starts,
                         std::int64_t head_dim, Rotation rotation)>
    rope;

// --- Causal grouped-query attention within documents; never holds a T x T matrix
// (FlashAttention-2, Dao 2023). Its cost falls with the length of the documents. ---

/// Query i of a row sees keys document_starts[i] to i. Scores are scaled by 1 / sqrt(E).
extern const Kernel<void(Stream&, const AttentionCall& call)> attention;
/// After attention() of the same call.
extern const Kernel<void(Stream&, const AttentionCall& call, const AttentionGradients& gradients)>
    attention_backward;

/// What computes attention() of these tensors: "cuDNN 9.19.0", "built-in kernels on tensor cores",
/// ...
extern const Kernel<std::string(Stream&, const AttentionCall& call)> attention_name;
/// What GPUs compute attention with where they can: "cuDNN 9.19.0", or "built-in kernels" and why.
/// Empty in a build without CUDA.
std::string gpu_attention();

/// Attention of new tokens over a cache, for inference: query i of M stands at position past + i
/// and sees keys 0 to past + i. out, q (M, H E) rows; keys, values (>= past + M, K E) rows. `shape`
/// has batch 1 and sequence M.
extern const Kernel<void(Stream&, Tensor out, Tensor q, Tensor keys, Tensor values,
                         const AttentionShape& shape, std::int64_t past)>
    cached_attention;

// --- SwiGLU (Shazeer 2020). gate_up (M, 2 F): gate in the first F columns, up in the others. ---

/// out (M, F) = silu(gate) * up.
extern const Kernel<void(Stream&, Tensor out, Tensor gate_up)> swiglu;
/// dgate_up (M, 2 F) overwritten; it may be gate_up itself. out (M, F), where there is one, gets
/// what swiglu() gave, in the same pass over memory.
extern const Kernel<void(Stream&, Tensor dgate_up, Tensor out, Tensor dout, Tensor gate_up)>
    swiglu_backward;

// --- Cross-entropy fused with its gradient. logits (M, V), targets (M) int32, negative: ignored.
// ---

enum class WithGradient : bool { no, yes };
/// losses (M) fp32 = log(sum(exp(logits))) - logits[target], 0 where ignored.
/// With WithGradient::yes, logits are overwritten by scale * d(sum of losses)/d(logits).
extern const Kernel<void(Stream&, Tensor losses, Tensor logits, Tensor targets, float scale,
                         WithGradient gradient)>
    cross_entropy;

// --- The same of a vocabulary that is cut into t parts, the ranks of a group having one each:
// logits (M, cols) of classes [first_class, first_class + cols). As Megatron's vocab-parallel
// cross-entropy, but with one gather between two kernels. ---

/// part (M, 3) fp32 of each row: the largest logit, the sum of exp(logit - largest), and the
/// target's logit, 0 if that is of another part. Zeros where ignored.
extern const Kernel<void(Stream&, Tensor part, Tensor logits, Tensor targets,
                         std::int64_t first_class)>
    cross_entropy_part;
/// As cross_entropy(), from the parts (t, M, 3) of all ranks in rank order. Losses are the same
/// bits on all ranks, since they are merged in that order.
extern const Kernel<void(Stream&, Tensor losses, Tensor logits, Tensor parts, Tensor targets,
                         std::int64_t first_class, float scale, WithGradient gradient)>
    cross_entropy_from_parts;

// --- Elementwise, dense tensors. ---

/// y = x, cast to y's dtype.
extern const Kernel<void(Stream&, Tensor y, Tensor x)> copy;
/// y += x, x cast to y's dtype.
extern const Kernel<void(Stream&, Tensor y, Tensor x)> add;
extern const Kernel<void(Stream&, Tensor y, float value)> fill;
extern const Kernel<void(Stream&, Tensor y, float factor)> scale;
/// Sum of squares of fp32 x, summed in double in an order that depends on numel alone. Waits for
/// the stream.
extern const Kernel<double(Stream&, Tensor x)> sum_of_squares;

// --- Optimizers, in one pass. ---

extern const Kernel<void(Stream&, const AdamwCall& call, const AdamwStep& step)> adamw;
extern const Kernel<void(Stream&, const SgdCall& call, const SgdStep& step)> sgd;

/// What oneDNN uses of this CPU: "avx512_core_amx", "avx512_core_bf16", ...
const char* instruction_set();

}  // namespace llamesh::ops
