#pragma once

#include <cmath>
#include <cstdint>

#include "core/tensor.hpp"
#include "ops/code_format.hpp"
#include "ops/pair_loss.hpp"

/// Arguments for the kernels in ops.hpp that take more than six, in the notation from ops.hpp.
/// Members with a default may be omitted.
namespace llamesh::ops {

/// A matrix in FP8: element (r, c) is values(r, c) * scales(r).
struct Fp8Matrix {
  Tensor values;  ///< (R, C) e4m3, or (N, R, C); dense
  Tensor scales;  ///< (R) or (N R) fp32, powers of two
};
/// Returns memory at `data` as a dense tensor with the shape of `values`, a matrix or a stack.
inline Tensor shaped_like(const Tensor& values, DType dtype, void* data) {
  if (values.dims() == 3) return {data, dtype, {values.size(0), values.size(1), values.size(2)}};
  return {data, dtype, {values.rows(), values.cols()}};
}

/// Neighboring elements in an FP8 matrix, as a rank holds them if ranks cut its rows.
struct Fp8Run {
  std::int64_t first;  ///< element of the matrix with which the run begins
  std::int64_t cols;   ///< C of the matrix
  Tensor scales;       ///< (rows of the matrix) fp32, powers of two
  Tensor values;       ///< (n) e4m3, dense

  /// Checks the shapes for a run with this many numbers.
  void check(std::int64_t numel) const {
    expects(values.dtype() == DType::e4m3 && values.dense() && values.numel() == numel,
            "{} numbers for a run with {}", numel, values.numel());
    expects(scales.dtype() == DType::f32 && first + numel <= scales.numel() * cols,
            "{} elements from {} on in {} rows with {}", numel, first, scales.numel(), cols);
  }
};

/// Numbers as codes in blocks with a scale each (Dettmers et al. 2022), or with one for each
/// quarter of a block. They are divided into parts, one for each rank that exchanges them, and each
/// part into blocks.
struct BlockCodes {
  static constexpr std::int64_t block = 256;         ///< numbers
  static constexpr std::int64_t square_sums = 8192;  ///< rows that quantize_blocks() adds to

  Tensor bytes;             ///< (P, part_bytes()) int8, dense: a part's codes, then its fp32 scales
  std::int64_t part_numel;  ///< numbers in a part; the last parts may have fewer
  CodeFormat format = CodeFormat::int8;

  /// Returns the blocks in a part.
  static constexpr std::int64_t blocks(std::int64_t part_numel) {
    return (part_numel + block - 1) / block;
  }
  /// Returns the size of a part, a multiple of 64.
  static constexpr std::int64_t part_bytes(std::int64_t part_numel, CodeFormat format) {
    const auto block_bytes = block * bits_of(format) / 8 + 4 * (block / scale_numel(format));
    return (blocks(part_numel) * block_bytes + 63) / 64 * 64;
  }
  std::int64_t parts() const { return bytes.rows(); }
  /// Checks the shapes for this many numbers. `squares` may be empty.
  void check(std::int64_t numel, const Tensor& squares = {}) const {
    expects(!squares || squares.numel() == 2 * square_sums, "{} sums of squares", squares.numel());
    expects(bytes.dtype() == DType::i8 && bytes.dense() &&
                bytes.cols() == part_bytes(part_numel, format) && numel <= parts() * part_numel,
            "{} numbers in {} parts of {} bytes, for {} numbers each", numel, parts(), bytes.cols(),
            part_numel);
  }
};

/// Arguments to rms_norm() and layer_norm(). With G > 1 groups, which only rms_norm() takes, x and
/// y are (M, G D), inverse is (M, G), and there are no delta and no row_sums.
struct RowNormCall {
  Tensor x;           ///< (M, D) rows
  Tensor delta = {};  ///< (M, D) rows; if given, sum is normalized instead of x
  Tensor sum = {};    ///< (M, D) rows, overwritten by x + delta if there is a delta; may be `x`
  Tensor w;           ///< (D)
  float offset = 0;   ///< added to w
  Tensor b = {};      ///< (D), only for layer_norm(); empty: no bias
  float eps;          ///< added to the mean of squares, or to the variance
  Tensor y;           ///< (M, D) rows, overwritten
  Tensor mean = {};   ///< (M) fp32, overwritten by layer_norm(); kept for the backward pass
  Tensor inverse;  ///< (M) fp32, likewise, by both: 1 / sqrt(mean of squares, or variance, + eps)
  /// (t, M) rows, fp32: rms_norm_row_sums() results from t ranks, each with D columns of every row.
  Tensor row_sums = {};
};

/// Arguments to rms_norm_backward() and layer_norm_backward().
struct RowNormBackwardCall {
  Tensor x;          ///< (M, D) rows: the tensor that was normalized, i.e. `sum` if there was a
                     ///< delta
  Tensor w;          ///< (D)
  float offset = 0;  ///< added to w
  Tensor mean = {};  ///< (M) fp32, from layer_norm()
  Tensor inverse;    ///< (M) fp32, from the forward pass
  Tensor dy;         ///< (M, D) rows
  Tensor dx;         ///< (M, D) rows; may be `dy`
  Accumulate accumulate_dx;
  Tensor dw;  ///< (D), fp32 or bf16, independent of the other dtypes; empty: not wanted
  Accumulate accumulate_dw;
  Tensor db = {};  ///< like dw, only for layer_norm_backward()
  Accumulate accumulate_db = Accumulate::no;
  Tensor row_sums = {};  ///< rms_norm_backward_row_sums() results, as in RowNormCall
};

/// Positions in its sequence of the n tokens in a row: two runs of neighbors, one in each half.
/// Ranks that divide a sequence have such rows (model::ContextParallel); elsewhere the runs adjoin.
struct RowPositions {
  std::int64_t tokens;                       ///< n
  std::int64_t first = 0;                    ///< position of token 0
  std::int64_t second = first + tokens / 2;  ///< position of token n / 2

  /// Returns the position of token i.
  constexpr std::int64_t operator[](std::int64_t i) const {
    const auto half = tokens / 2;
    return i < half ? first + i : second + i - half;
  }
  /// Returns true if the row is one run of neighbors.
  constexpr bool adjoin() const { return second == first + tokens / 2; }
  bool operator==(const RowPositions&) const = default;
};

/// A row of queries attends to a row of keys: that of the same sequence. Usually these are as many,
/// but ranks that divide a sequence have part of its queries and all of its keys.
struct AttentionShape {
  std::int64_t batch;                   ///< B
  std::int64_t sequence;                ///< T: queries in a row
  std::int64_t heads;                   ///< H
  std::int64_t kv_heads;                ///< K, divides H
  std::int64_t head_dim;                ///< E: elements of a query, and of a key
  std::int64_t window = 0;              ///< keys that a query sees at most, itself included; 0: all
  std::int64_t keys = sequence;         ///< S: keys in a row, in positions 0 to S - 1
  RowPositions positions = {sequence};  ///< of the queries
  float score_divisor = std::sqrt(static_cast<float>(head_dim));  ///< of q . k, before the softmax
  float softcap = 0;  ///< c: the quotients become c tanh(quotient / c); 0: they stay
  std::int64_t value_dim = head_dim;  ///< V: elements in a value
};

/// Arguments to attention(). attention_backward() takes them unchanged.
struct AttentionCall {
  AttentionShape shape;
  Tensor q;                     ///< (M, H E) rows
  Tensor k;                     ///< (B S, K E) rows
  Tensor v;                     ///< (B S, K V) rows
  Tensor document_starts = {};  ///< (B, T) int32, of the queries; see ops.hpp
  Tensor out;                   ///< (M, H V) rows, overwritten by attention()
  Tensor log_sum_exp;           ///< (B, H, T) fp32, overwritten by attention()
};

/// Further arguments to attention_backward().
struct AttentionGradients {
  Tensor dout;   ///< (M, H V) rows
  Tensor dq;     ///< (M, H E) rows, overwritten
  Tensor dk;     ///< (B S, K E) rows, overwritten
  Tensor dv;     ///< (B S, K V) rows, overwritten
  Tensor delta;  ///< (B, H, T) fp32, scratch: rowsum(dout * out)
  /// (T, E) fp32, as for rope(). If given, q and k are outputs of rope(), and dq and dk are
  /// gradients with respect to its inputs. Only for rows with all keys, S = T.
  Tensor cos_sin = {};
};

/// Arguments to attention_sinks(). attention_sinks_backward() takes them unchanged.
struct AttentionSinks {
  Tensor sinks;        ///< (H)
  Tensor out;          ///< (M, H V) rows: attention()'s, or cached_attention()'s; updated
  Tensor log_sum_exp;  ///< (B, H, T) fp32: likewise
};

/// Further arguments to attention_sinks_backward().
struct AttentionSinksGradients {
  Tensor dout;    ///< (M, H V) rows
  Tensor dsinks;  ///< (H), fp32 or bf16, independent of the other dtypes
  Accumulate accumulate = Accumulate::no;
};

/// Keys and values in multi-head latent attention (DeepSeek-AI 2024), and what they come from: H
/// heads with N + R dims in keys and V in values. In its pairs of dims (i, i + (N + R) / 2), a key
/// has the R/2 first from `k_rope`, which all heads share, and the others from `kv`, in their
/// order.
struct LatentHeads {
  std::int64_t heads;  ///< H
  Tensor kv;           ///< (M, H (N + V)) rows: in each head N dims for the key, then the value
  Tensor k_rope;       ///< (M, R) rows: the pairs' first dims, then their second
  Tensor k;            ///< (M, H (N + R)) rows
  Tensor v;            ///< (M, H V) rows
};

/// Activation of an MLP. GELU in its tanh form: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
/// (Hendrycks & Gimpel 2016).
enum class Activation : std::uint8_t {
  swiglu,  ///< silu(gate) * up
  /// g sigmoid(1.702 g) (u + 1), with g = min(gate, 7) and u = up within [-7, 7] (gpt-oss)
  clamped_swiglu,
  geglu,         ///< gelu(gate) * up
  gelu,          ///< gelu(x), without a gate
  squared_relu,  ///< max(x, 0)^2, without a gate (So et al. 2021)
  xielu,         ///< without a gate, with learned coefficients: xielu() instead of activate()
};
/// Returns the input columns per output column: 2 with a gate, else 1.
constexpr std::int64_t inputs_of(Activation activation) {
  using enum Activation;
  return activation == swiglu || activation == clamped_swiglu || activation == geglu ? 2 : 1;
}

/// Arguments to xielu(). xielu_backward() takes them unchanged, but `out` may be empty.
struct XieluCall {
  Tensor out;               ///< (M, F) rows, overwritten
  Tensor x;                 ///< (M, F) rows
  Tensor alpha_p, alpha_n;  ///< (1)
};

/// Further arguments to xielu_backward().
struct XieluGradients {
  Tensor dout;                  ///< (M, F) rows
  Tensor dx;                    ///< (M, F) rows, overwritten; may be `x`
  Tensor d_alpha_p, d_alpha_n;  ///< (1); empty: not wanted
  Accumulate accumulate_p = Accumulate::no, accumulate_n = Accumulate::no;
};

/// What a router makes of an expert's logit.
enum class RouterScore : std::uint8_t { softmax, sigmoid };

/// Arguments to route(). route_backward() takes them unchanged.
struct RouteCall {
  Tensor logits;            ///< (M, N) rows
  Tensor probabilities;     ///< (M, N) fp32, overwritten by route(): the scores
  Tensor experts;           ///< (M, k) int32, likewise: the best first
  Tensor weights;           ///< (M, k) fp32, likewise: the experts' scores
  bool normalize;           ///< whether each token's weights are divided by their sum
  Tensor log_sum_exp = {};  ///< (M) fp32, likewise: log(sum(exp(logits))); empty: not wanted. Only
                            ///< with softmax
  RouterScore score = RouterScore::softmax;
  Tensor bias = {};  ///< (N) fp32, added to the scores to choose by (Wang et al. 2024); or empty
  /// Experts are in so many equal groups, at most 32. Only those in the best groups are chosen
  /// from, and a group counts by its best (DeepSeek-V2), or with sigmoids by its two best together
  /// (DeepSeek-V3).
  std::int64_t groups = 1, groups_taken = 1;
  float scale = 1;  ///< factor on the weights
};

/// Further arguments to route_backward().
struct RouteGradients {
  Tensor dweights;             ///< (M, k) fp32
  Tensor dprobabilities = {};  ///< (N) fp32: what a loss adds to each token's probabilities, as the
                               ///< load-balancing loss does; empty: nothing. Only with softmax
  Tensor dlogits;              ///< (M, N) rows, overwritten; may be `logits`
  float z_factor = 0;  ///< adds z_factor * log_sum_exp to the gradient of each token's log_sum_exp
};

/// Arguments to sum_routes(), fp32: sums over tokens, to which it adds.
struct RouteSums {
  Tensor counts;         ///< (N) tokens that take each expert
  Tensor probabilities;  ///< (N)
  Tensor squares;        ///< (1) of log_sum_exp, if the call has that
};

/// Results of sort_by_expert(), int32.
struct ExpertOrder {
  Tensor starts;  ///< (N + 1) expert e has the rows [starts[e], starts[e + 1])
  Tensor slots;   ///< (M k) each row's slot
  Tensor places;  ///< (M k) each slot's row
};

/// Arguments to weigh_rows_backward(). R rows in expert order.
struct WeighRowsBackwardCall {
  Tensor weights;      ///< (R, 1) fp32
  Tensor dweights;     ///< (R, 1) fp32, overwritten
  Tensor activated;    ///< (R, F) rows, scaled
  Tensor d_activated;  ///< (R, F) rows
  Tensor d_up;         ///< (R, U) rows, scaled
};

/// Arguments to grouped_bias_backward(). R rows in expert order.
struct GroupedBiasBackwardCall {
  Tensor dy;            ///< (R, C) rows
  Tensor starts;        ///< (N + 1) int32: expert e has the rows [starts[e], starts[e + 1])
  Tensor weights = {};  ///< (R, 1) fp32, on the biased rows; empty: all 1
  Tensor db = {};       ///< (N, C), fp32 or bf16, independent of dy's; empty: not wanted
  Accumulate accumulate = Accumulate::no;
  Tensor b = {};         ///< (N, C); needed for `dweights`
  Tensor dweights = {};  ///< (R, 1) fp32, to which it adds; empty: not wanted
};

enum class WithGradient : bool { no, yes };

/// Arguments to cross_entropy() and cross_entropy_from_parts().
struct CrossEntropyCall {
  Tensor losses;   ///< (M) fp32, overwritten
  Tensor logits;   ///< (M, V) rows, overwritten by their gradient if that is wanted
  Tensor targets;  ///< (M) int32; negative: ignored
  WithGradient gradient = WithGradient::no;
  float scale = 1;    ///< factor on the gradient
  float softcap = 0;  ///< if the logits are outputs of softcap(): its c. The gradient is that of
                      ///< its inputs.
  Tensor row_factors = {};  ///< (M) fp32: further factors on each row's gradient; empty: 1
};

/// Rows of PairLossCall::results.
inline constexpr std::int64_t pair_results = 5;

/// Arguments to pair_losses(). Pair p has the documents 2 p, which is preferred, and 2 p + 1.
struct PairLossCall {
  Tensor row_factors;  ///< (M) fp32, overwritten: derivative of the summed pair losses by each
                       ///< token's own loss
  /// (5, P) fp32, overwritten: loss, log-probabilities and rewards, each of the preferred document
  /// and the other. A reward is beta (log p - log p under the reference model).
  Tensor results;
  Tensor log_probs;   ///< (2 P) fp32, summed over a document's tokens
  Tensor references;  ///< (2 P) fp32: the same under the reference model
  Tensor tokens;      ///< (2 P) fp32: how many were summed
  Tensor documents;   ///< (M) int32: each token's document; -1: none
  PairLoss loss;
  float beta;
};

/// Random bits for stochastic rounding, by an element's index in its whole parameter: the same on
/// every mesh. Element e has word e % 4 of the Philox block with counter (stream, e / 4); its lower
/// half rounds the first moment, its upper half the second.
struct RoundingBits {
  std::uint64_t key = 0, stream = 0;
  /// A call's elements are a range in a rank's part of the parameter. The part consists of runs of
  /// `run` elements, from `origin` on and `stride` apart; the range starts at its element `begin`.
  std::int64_t origin = 0, begin = 0, run = 1, stride = 1;
};

/// Arguments to adamw(): dense tensors with equal numel, fp32 unless stated otherwise.
struct AdamwCall {
  Tensor parameter;            ///< updated
  Tensor exp_avg, exp_avg_sq;  ///< updated; both fp32, or both bf16 and rounded stochastically
  Tensor gradient;
  Tensor copy = {};  ///< bf16; if given, overwritten by the new parameter, rounded as by copy()
  RoundingBits rounding = {};  ///< for moments in bf16
};

/// Arguments to sgd(), as for adamw().
struct SgdCall {
  Tensor parameter, momentum_buffer;
  Tensor gradient;
  Tensor copy = {};
};

/// Scalars for one AdamW step (Loshchilov & Hutter 2019), as in torch.optim.AdamW. They are double,
/// as in torch: with beta = 0.9999 rounded to fp32, 1 - beta has a relative error of 1.7e-4.
struct AdamwStep {
  double lr, beta1, beta2, eps, weight_decay;
  double correction1;     ///< 1 - beta1^t
  double correction2;     ///< 1 - beta2^t
  double gradient_scale;  ///< clip factor, folded in
};

/// Arguments to muon_momentum(): dense tensors with equal numel, fp32 unless stated otherwise.
struct MuonMomentumCall {
  Tensor update;    ///< overwritten
  Tensor momentum;  ///< updated; fp32, or bf16 and rounded stochastically as AdamW's first moment
  Tensor gradient;
  RoundingBits rounding = {};  ///< for momentum in bf16
};

/// Scalars for the momentum in a Muon step.
struct MuonMomentumStep {
  float beta;
  bool nesterov;
  float gradient_scale;  ///< clip factor, folded in
};

/// Arguments to outer_step(): dense fp32 tensors with equal numel, but for `copy`.
struct OuterCall {
  Tensor outer;          ///< the exchanged weights, updated
  Tensor momentum = {};  ///< updated; empty: plain SGD
  Tensor difference;     ///< mean over the replicas of those weights less each one's own
  Tensor parameter;      ///< the replica's own weights, updated
  Tensor copy = {};      ///< as for adamw()
};

/// Scalars for an outer step (DiLoCo, Douillard et al. 2023).
struct OuterStep {
  float lr, momentum;
  float local_share;  ///< weight of `parameter` in its new value, beside the outer weights
};

/// Scalars for one SGD step with momentum, as in torch.optim.SGD (no dampening, no Nesterov).
struct SgdStep {
  float lr, momentum, weight_decay, gradient_scale;
};

}  // namespace llamesh::ops
