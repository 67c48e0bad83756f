#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/calls.hpp"
#include "ops/element_hash.hpp"
#include "ops/kernel.hpp"
#include "ops/square_units.hpp"

/// Declares every llamesh kernel once; kernels.inc lists their names.
///
/// B batch, T sequence, M = B T tokens, D hidden, H heads, K key-value heads, E head dim, F
/// intermediate, V vocabulary.
///
/// Kernels read and write borrowed views and return once the work is queued on `stream`.
/// Activations and parameters are fp32 or bf16, one dtype per call unless stated otherwise;
/// statistics, sums and softmax are fp32. A parameter marked "rows" may have strided rows
/// (Tensor::row_stride). A gradient with an Accumulate is added to (`yes`) or overwritten (`no`).
/// CPU kernels use OpenMP threads; results do not depend on their number, except for the last bits
/// in GEMMs (thread_independence.hpp).
namespace llamesh::ops {

// --- Linear layers (GEMM). x (M, in) rows, w (out, in) rows, y (M, out) rows. ---

/// y = x w^T, or y += x w^T. y may be fp32 if x and w are bf16.
extern const Kernel<void(Stream&, Tensor y, Tensor x, Tensor w, Accumulate accumulate)> linear;
/// dx (M, in) = or += dy (M, out) w.
extern const Kernel<void(Stream&, Tensor dx, Tensor dy, Tensor w, Accumulate accumulate)>
    linear_backward_input;
/// dw (out, in) rows = or += dy^T x. dw is fp32 or bf16, independent of the other dtypes. On a GPU
/// it must be dense if it is bf16 and they are fp32.
extern const Kernel<void(Stream&, Tensor dw, Tensor dy, Tensor x, Accumulate accumulate)>
    linear_backward_weight;

// --- Linear layers in FP8 with a scale per row (torchao's rowwise recipe, with scales that are
// powers of two). A scale is the smallest for which the row's largest magnitude, or 1e-12 if that
// is larger, is at most 448. Elements are rounded to nearest even. A row with a number that is not
// finite becomes NaN. An element times its scale is exactly a bf16 number. ---

/// q (R, C) = x (R, C) rows, fp32 or bf16.
extern const Kernel<void(Stream&, const Fp8Matrix& q, Tensor x)> quantize_rows;
/// q (C, R), or (N, C, R) = x (R, C), or (N, R, C), dense, with each matrix transposed.
extern const Kernel<void(Stream&, const Fp8Matrix& q, Tensor x)> quantize_columns;
/// The same for the numbers that w (R, C), or (N, R, C), has: with scales for its columns.
extern const Kernel<void(Stream&, const Fp8Matrix& q, const Fp8Matrix& w)> requantize_columns;
/// y (R, C) = q, dense, fp32 or bf16.
extern const Kernel<void(Stream&, Tensor y, const Fp8Matrix& q)> dequantize_rows;

/// The same for ranks that cut the rows, where x (n), fp32 or bf16, is this rank's run. First they
/// agree on the scales: maxima (rows that the run touches) fp32 = the largest magnitude in each of
/// these rows. The run needs neither scales nor values.
extern const Kernel<void(Stream&, Tensor maxima, Tensor x, const Fp8Run& run)> row_maxima;
/// scales (R) from maxima (S, N), where rank s has rows [first_rows(s), first_rows(s) + N), int32;
/// what it has behind row R is ignored.
extern const Kernel<void(Stream&, Tensor scales, Tensor maxima, Tensor first_rows)> row_scales;
/// q = x (n), dense, fp32 or bf16.
extern const Kernel<void(Stream&, const Fp8Run& q, Tensor x)> quantize_run;

/// y (M, out) rows = or += x (M, in) w (out, in)^T, summed in fp32. A device without FP8 units
/// multiplies the same numbers in the type of y.
extern const Kernel<void(Stream&, Tensor y, const Fp8Matrix& x, const Fp8Matrix& w,
                         Accumulate accumulate)>
    linear_fp8;
/// The same for experts, as grouped_linear().
extern const Kernel<void(Stream&, Tensor y, const Fp8Matrix& x, const Fp8Matrix& w, Tensor starts,
                         Accumulate accumulate)>
    grouped_linear_fp8;

// --- Codes with a scale for each block: int8 or int4 for an exchange between ranks (ZeRO++, Wang
// et al. 2023), int8 or nf4 with more scales for weights at rest (QLoRA, Dettmers et al. 2023). A
// scale is the largest magnitude of its numbers over the largest code; codes are rounded to nearest
// even, nf4 to the nearest level. Numbers without a magnitude of 1e-30 become zeros, those with one
// that is not finite become NaN. ---

/// q = x, dense, fp32 or bf16: at most as many numbers as its parts have; the others count as
/// zeros. With `squares` (blocks of all parts, 2) fp32: per block, the sums of squares of the
/// errors, and of x.
extern const Kernel<void(Stream&, const BlockCodes& q, Tensor x, Tensor squares)> quantize_blocks;
/// y = q, dense, fp32 or bf16, with at most as many numbers.
extern const Kernel<void(Stream&, Tensor y, const BlockCodes& q)> dequantize_blocks;
/// y (part_numel) fp32, dense = or += the sum of q's parts, in their order.
extern const Kernel<void(Stream&, Tensor y, const BlockCodes& q, Accumulate accumulate)>
    sum_block_parts;

// --- Bias of a linear layer. y, dy (M, N) rows. ---

/// y += b (N) in every row. Their dtypes may differ.
extern const Kernel<void(Stream&, Tensor y, Tensor b)> add_bias;
/// db (N) = or += the sum over the rows of dy, in a fixed order. db is fp32 or bf16.
extern const Kernel<void(Stream&, Tensor db, Tensor dy, Accumulate accumulate)> column_sums;

// --- Embedding. tokens (M) int32; table (rows, D) holds vocabulary rows
// [first_row, first_row + rows): all of them, or one rank's part (Megatron's
// VocabParallelEmbedding). ---

/// out (M, D) = or += table[tokens - first_row]; zeros for tokens outside this part.
extern const Kernel<void(Stream&, Tensor out, Tensor tokens, Tensor table, std::int64_t first_row,
                         Accumulate accumulate)>
    embedding;
/// dtable (rows, D) = or += dout summed over equal tokens, in token order (deterministic). dtable
/// is fp32 or bf16.
extern const Kernel<void(Stream&, Tensor dtable, Tensor dout, Tensor tokens, std::int64_t first_row,
                         Accumulate accumulate)>
    embedding_backward;
/// ids (M) int32: each token's position in its document (see below).
extern const Kernel<void(Stream&, Tensor ids, Tensor document_starts,
                         const RowPositions& positions)>
    token_positions;

// --- Norms of rows. RMSNorm: y = x / sqrt(mean(x^2) + eps) * (w + offset) (Zhang & Sennrich 2019).
// LayerNorm: y = (x - mean(x)) / sqrt(variance(x) + eps) * (w + offset) + b (Ba et al. 2016). ---

/// With a delta, first sum = x + delta, and y is the norm of sum. If rms_norm()'s w is shorter than
/// a row, it divides the row into G groups (heads), and each is normalized by itself.
extern const Kernel<void(Stream&, const RowNormCall&call)> rms_norm, layer_norm;
/// The same as rms_norm(), and q = y as quantize_rows(), in one pass over memory if a GPU can hold
/// the rows.
extern const Kernel<void(Stream&, const RowNormCall& call, const Fp8Matrix& q)>
    rms_norm_and_quantize;
/// dx = or += the gradient with respect to x; dw and db likewise for w and b.
extern const Kernel<void(Stream&, const RowNormBackwardCall&call)> rms_norm_backward,
    layer_norm_backward;

// --- RMSNorm with each row split among t ranks, D columns each: t D in all. The first kernel
// computes partial row sums, the caller gathers them, and the second kernel takes them as row_sums
// and adds them in rank order. ---

/// sums (M) fp32 = sum over this rank's columns of x^2. With a delta, writes x + delta to `sum` and
/// uses that instead; pass `sum` as x to rms_norm().
extern const Kernel<void(Stream&, const RowNormCall& call, Tensor sums)> rms_norm_row_sums;
/// sums (M) fp32 = sum over this rank's columns of dy (w + offset) x / rms, per row.
extern const Kernel<void(Stream&, const RowNormBackwardCall& call, Tensor sums)>
    rms_norm_backward_row_sums;

// --- Documents packed into rows of T tokens: rope and attention treat each document as a separate
// row. document_starts (B, T) int32 holds, per token, the position where its document starts; so it
// equals the previous token's entry or the token's own position. Empty: one document per row. A
// token's position is its index in the row, unless RowPositions says otherwise: then a document may
// also start before a half of the row. ---

// --- Rotary embedding, Hugging Face's half-split convention:
// (x1, x2) -> (x1 c - x2 s, x2 c + x1 s). ---

enum class Rotation : bool { forward, backward };
/// Rotates heads in place, each with E elements. x (M, heads * E) rows. Token m has the angles of
/// positions[m % T] - document_starts[m]. cos_sin (P, E) fp32 has those of P positions: E/2
/// cosines, then E/2 sines each.
extern const Kernel<void(Stream&, Tensor x, Tensor cos_sin, Tensor document_starts,
                         const RowPositions& positions, Rotation rotation)>
    rope;

// --- Causal grouped-query attention within documents. Never stores a T x T matrix
// (FlashAttention-2, Dao 2023). Shorter documents cost less. ---

/// Query i in a row sees keys document_starts[i] to positions[i]; with a window W, only the last W
/// of these.
extern const Kernel<void(Stream&, const AttentionCall& call)> attention;
/// Call after attention() with the same call.
extern const Kernel<void(Stream&, const AttentionCall& call, const AttentionGradients& gradients)>
    attention_backward;

/// Names the implementation that attention() would use for these tensors: "cuDNN 9.19.0", "built-in
/// kernels on tensor cores", ...
extern const Kernel<std::string(Stream&, const AttentionCall& call)> attention_name;
/// Names the preferred attention implementation on GPUs: "cuDNN 9.19.0", or "built-in kernels" and
/// the reason. Empty in a build without CUDA.
std::string gpu_attention();

/// Attends from new tokens to a cache, for inference. Query i < M has position past + i and sees
/// keys 0 to past + i; with a window, the last of these. The call has batch 1, and k and v have at
/// least past + M rows, whatever its shape says; log_sum_exp may be empty.
extern const Kernel<void(Stream&, const AttentionCall& call, std::int64_t past)> cached_attention;

/// Gives each head a sink: a score, learned and the same for all queries, that takes part in the
/// softmax and has no value (gpt-oss). Without it, out is the weighted mean of the values; with it,
/// all weights are scaled by sigmoid(log_sum_exp - sink), and log_sum_exp includes the sink.
/// attention_backward() then computes the other gradients, as it does without.
extern const Kernel<void(Stream&, const AttentionSinks& sinks)> attention_sinks;
/// dsinks = or += the sinks' gradient: minus the sum over all rows, each dout . out times the
/// sink's weight.
extern const Kernel<void(Stream&, const AttentionSinks& sinks,
                         const AttentionSinksGradients& gradients)>
    attention_sinks_backward;

/// Writes k and v.
extern const Kernel<void(Stream&, const LatentHeads& heads)> latent_heads;
/// Given gradients in all members: writes kv, and k_rope, the sum over the heads.
extern const Kernel<void(Stream&, const LatentHeads& gradients)> latent_heads_backward;

// --- An MLP's activation f. With a gate, x (M, 2 F) has the gate in its first F columns and `up`
// in the rest (Shazeer 2020); without one, x is (M, F). All rows. ---

/// out (M, F) = f(gate) * up, or f(x).
extern const Kernel<void(Stream&, Tensor out, Tensor x, Activation activation)> activate;
/// The same, and q = out as quantize_rows(), in one pass over memory if a GPU can hold the rows.
extern const Kernel<void(Stream&, Tensor out, const Fp8Matrix& q, Tensor x, Activation activation)>
    activate_and_quantize;
/// Overwrites dx, which may alias x. If `out` (M, F) is given, recomputes activate()'s output into
/// it in the same pass over memory.
extern const Kernel<void(Stream&, Tensor dx, Tensor out, Tensor dout, Tensor x,
                         Activation activation)>
    activate_backward;

/// xIELU (Huang & Schlag 2024): out = a x^2 + x / 2 for x > 0, else b (exp(min(x, -1e-6)) - 1 - x)
/// + x / 2, with a = softplus(alpha_p) and b = 1/2 + softplus(alpha_n).
extern const Kernel<void(Stream&, const XieluCall& call)> xielu;
/// If the call has `out`, recomputes it in the same pass over memory.
extern const Kernel<void(Stream&, const XieluCall& call, const XieluGradients& gradients)>
    xielu_backward;

// --- Mixture of experts (Shazeer et al. 2017). Each token takes k of N experts; slot m k + j is
// token m's j-th. Experts take rows in expert order: sort_by_expert() says which slot each row is.
// No token is dropped and no group is padded. ---

/// Chooses the k best experts of each token, by scores in fp32. Equal ones go to the expert with
/// the lower number.
extern const Kernel<void(Stream&, const RouteCall& call)> route;
/// Overwrites dlogits.
extern const Kernel<void(Stream&, const RouteCall& call, const RouteGradients& gradients)>
    route_backward;
/// Adds the tokens' routes to `sums`.
extern const Kernel<void(Stream&, const RouteCall& call, const RouteSums& sums)> sum_routes;
/// Sorts the slots in experts (M, k) int32 by expert, those of one expert by token.
extern const Kernel<void(Stream&, const ExpertOrder& order, Tensor experts)> sort_by_expert;
/// rows (M k, D) = each slot's token of x (M, D), in expert order. Both rows. If x has a row for
/// each slot, k = 1.
extern const Kernel<void(Stream&, Tensor rows, Tensor x, Tensor slots)> dispatch_tokens;
/// y (M, D) = or += the sum over a token's slots of weight * row, in slot order. rows (M k, D) in
/// expert order; weights (M, k) fp32, or empty: all 1, which makes it dispatch_tokens()'s backward
/// pass.
extern const Kernel<void(Stream&, Tensor y, Tensor rows, Tensor weights, Tensor places,
                         Accumulate accumulate)>
    combine_tokens;
/// combine_tokens()'s backward pass for its weights, taken before the experts' last linear layer so
/// that its outputs need not be kept: row . dy = activated . d_activated, where the layer turns
/// dy into d_activated. dweights = that, per row; then activated, for the layer's weight gradient,
/// and d_up, the gradient that follows from d_activated, are scaled by the row's weight.
extern const Kernel<void(Stream&, const WeighRowsBackwardCall& call)> weigh_rows_backward;

/// gates (M, 1) fp32 = sigmoid(gates). Then scales the rows of y (M, D) by them, if it is given.
extern const Kernel<void(Stream&, Tensor y, Tensor gates)> gate_rows;
/// dlogits (M, 1) = the gradient of what the gates were before gate_rows(), from theirs, fp32.
extern const Kernel<void(Stream&, Tensor dlogits, Tensor dgates, Tensor gates)> gate_rows_backward;

// Linear layers of N experts. x (R, in) rows, w (N, out, in) dense, y (R, out) rows; starts (N + 1)
// int32: expert e has rows [starts[e], starts[e + 1]) of R. ---

/// y = or += x w[e]^T in the rows of each expert e.
extern const Kernel<void(Stream&, Tensor y, Tensor x, Tensor w, Tensor starts,
                         Accumulate accumulate)>
    grouped_linear;
/// dx = or += dy w[e].
extern const Kernel<void(Stream&, Tensor dx, Tensor dy, Tensor w, Tensor starts,
                         Accumulate accumulate)>
    grouped_linear_backward_input;
/// dw[e] = or += dy^T x over the rows of expert e: zero for one without rows. dw is fp32 or bf16.
extern const Kernel<void(Stream&, Tensor dw, Tensor dy, Tensor x, Tensor starts,
                         Accumulate accumulate)>
    grouped_linear_backward_weight;

/// y (R, C) += b[e] (N, C) in each expert's rows. Their dtypes may differ.
extern const Kernel<void(Stream&, Tensor y, Tensor b, Tensor starts)> grouped_bias;
/// db[e] = or += the sum over the rows of expert e of weight * dy: zero for one without rows; and
/// dweights += dy . b[e], per row.
extern const Kernel<void(Stream&, const GroupedBiasBackwardCall& call)> grouped_bias_backward;

// --- Cross-entropy fused with its gradient. ---

/// losses = log(sum(exp(logits))) - logits[target], 0 for ignored targets. With WithGradient::yes,
/// overwrites logits with scale * d(sum(losses))/d(logits).
extern const Kernel<void(Stream&, const CrossEntropyCall& call)> cross_entropy;

// --- Cross-entropy with the vocabulary split into t parts, one per rank in a group:
// logits (M, cols) for classes [vocab_start, vocab_start + cols). Like Megatron's vocab-parallel
// cross-entropy, but with a single gather between two kernels. ---

/// part (M, 3) fp32, per row: the largest logit, sum(exp(logit - largest)), and the target's logit,
/// or 0 if another part holds it. Zeros for ignored targets.
extern const Kernel<void(Stream&, Tensor part, Tensor logits, Tensor targets,
                         std::int64_t vocab_start)>
    cross_entropy_part;
/// Like cross_entropy(), from all ranks' parts (t, M, 3) in rank order. Merges in that order, so
/// the losses are bitwise equal on all ranks.
extern const Kernel<void(Stream&, const CrossEntropyCall& call, Tensor parts,
                         std::int64_t vocab_start)>
    cross_entropy_from_parts;

// --- Losses on document pairs. ---

/// log_probs (D) = minus the sum of the losses (M) of each document's tokens, which `documents` (M)
/// int32 numbers from 0; -1: of none. A document's tokens in a row follow one another.
extern const Kernel<void(Stream&, Tensor log_probs, Tensor losses, Tensor documents)>
    log_probs_of_documents;
/// Compares the documents of each pair. Needs no more pairs than tokens.
extern const Kernel<void(Stream&, const PairLossCall& call)> pair_losses;

// --- Elementwise, dense tensors. ---

/// y = x, cast to y's dtype. Matrices of one dtype may have strided rows.
extern const Kernel<void(Stream&, Tensor y, Tensor x)> copy;
/// y += x, with x cast to y's dtype.
extern const Kernel<void(Stream&, Tensor y, Tensor x)> add;
extern const Kernel<void(Stream&, Tensor y, float value)> fill;
extern const Kernel<void(Stream&, Tensor y, float factor)> scale;
/// y = c tanh(y / c)
extern const Kernel<void(Stream&, Tensor y, float c)> softcap;
/// Returns the sum of squares of fp32 tensors, accumulated in double in an order that depends on
/// their sizes alone. Waits for the stream, once for all.
extern const Kernel<double(Stream&, const std::vector<Tensor>& xs)> sum_of_squares;
/// Returns the largest magnitude in fp32 x: 0 if it is empty, a NaN if it has one. Waits for the
/// stream.
extern const Kernel<float(Stream&, Tensor x)> largest_magnitude;
/// Returns the squares of fp32 x, whose magnitudes are below 2^exponent, as a sum that no order
/// changes. Waits for the stream.
extern const Kernel<SquareUnits(Stream&, Tensor x, int exponent)> square_units;
/// Sums hash_of_element() over dense x, fp32 or bf16, whose values count as fp32: the same on every
/// device. Waits for the stream.
extern const Kernel<std::uint64_t(Stream&, Tensor x, ElementNumbers numbers)> hash_elements;

// --- Optimizers, in one pass. ---

extern const Kernel<void(Stream&, const AdamwCall& call, const AdamwStep& step)> adamw;
extern const Kernel<void(Stream&, const SgdCall& call, const SgdStep& step)> sgd;
/// y = (a - b) factor, dense fp32.
extern const Kernel<void(Stream&, Tensor y, Tensor a, Tensor b, float factor)> scaled_difference;
/// As torch.optim.SGD with nesterov=True: buffer = momentum buffer + difference; outer -= lr
/// (difference + momentum buffer); without a buffer, outer -= lr difference. Then parameter = outer
/// + local_share (parameter - outer).
extern const Kernel<void(Stream&, const OuterCall& call, const OuterStep& step)> outer_step;
/// momentum += (slope - momentum) (1 - beta), where slope is the scaled gradient; update = slope +
/// (momentum - slope) beta with Nesterov's momentum, otherwise the new momentum.
extern const Kernel<void(Stream&, const MuonMomentumCall& call, const MuonMomentumStep& step)>
    muon_momentum;
/// squared (k, k) = a I + b x + c squared, fp32 and dense: a polynomial in symmetric x (k, k),
/// given x^2. Reads only the lower triangles, and writes the whole matrix. x may be `squared`
/// itself.
extern const Kernel<void(Stream&, Tensor squared, Tensor x, float a, float b, float c)>
    matrix_quadratic;

/// Names the implementations that attention() and attention_backward() have used on this process's
/// GPU so far, e.g. "cuDNN 9.19.0, backward built-in kernels by wgmma". Other
/// implementations give other bits. Empty before the first call, and on CPUs.
std::string used_attention();

/// Returns the scratch in bytes that attention may allocate on this process's GPU beyond what plans
/// count.
std::int64_t max_attention_scratch();

/// Returns the instruction set that oneDNN uses on this CPU: "avx512_core_amx", "avx512_core_bf16",
/// ...
const char* instruction_set();

}  // namespace llamesh::ops
