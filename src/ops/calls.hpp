#pragma once

#include <cstdint>

#include "core/accumulate.hpp"
#include "core/tensor.hpp"

/// What the kernels of ops.hpp with more than six arguments take, in the letters of ops.hpp. What
/// has a default may be left out.
namespace llamesh::ops {

/// Of rms_norm().
struct RmsNormCall {
  Tensor x;            ///< (M, D) rows
  Tensor delta = {};   ///< (M, D) rows; if given, sum is normalised instead of x
  Tensor sum = {};     ///< (M, D) rows, overwritten by x + delta if there is a delta; may be `x`
  Tensor w;            ///< (D)
  float eps;           ///< added to the mean of squares
  Tensor y;            ///< (M, D) rows, overwritten
  Tensor inverse_rms;  ///< (M) fp32, overwritten; kept for the backward pass
  /// (t, M) fp32: where t ranks have D columns each, what rms_norm_row_sums() gave on each of them.
  Tensor row_sums = {};
};

/// Of rms_norm_backward().
struct RmsNormBackwardCall {
  Tensor x;            ///< (M, D) rows: what was normalised, so the sum where there was one
  Tensor w;            ///< (D)
  Tensor inverse_rms;  ///< (M) fp32, from the forward pass
  Tensor dy;           ///< (M, D) rows
  Tensor dx;           ///< (M, D) rows
  Accumulate accumulate_dx;
  Tensor dw;  ///< (D), fp32 or bf16 whatever the others are
  Accumulate accumulate_dw;
  Tensor row_sums = {};  ///< (t, M) fp32, as in RmsNormCall, by rms_norm_backward_row_sums()
};

struct AttentionShape {
  std::int64_t batch;     ///< B
  std::int64_t sequence;  ///< T
  std::int64_t heads;     ///< H
  std::int64_t kv_heads;  ///< K, divides H
  std::int64_t head_dim;  ///< E
};

/// Of attention(); attention_backward() takes it as it was.
struct AttentionCall {
  AttentionShape shape;
  Tensor q;                     ///< (M, H E) rows
  Tensor k, v;                  ///< (M, K E) rows
  Tensor document_starts = {};  ///< (B, T) int32, see ops.hpp
  Tensor out;                   ///< (M, H E) rows, overwritten by attention()
  Tensor log_sum_exp;           ///< (B, H, T) fp32, overwritten by attention()
};

/// What attention_backward() takes besides.
struct AttentionGradients {
  Tensor dout;    ///< (M, H E) rows
  Tensor dq;      ///< (M, H E) rows, overwritten
  Tensor dk, dv;  ///< (M, K E) rows, overwritten
  Tensor delta;   ///< (B, H, T) fp32, scratch: rowsum(dout * out)
  /// (T, E) fp32, as rope() takes it. If given, q and k are what rope() has made, and dq and dk the
  /// gradients of what it took.
  Tensor cos_sin = {};
};

/// Of adamw(): dense tensors of equal numel, fp32 but the copy.
struct AdamwCall {
  Tensor parameter, exp_avg, exp_avg_sq;  ///< updated
  Tensor gradient;
  Tensor copy = {};  ///< bf16; if given, overwritten by the new parameter, rounded as by copy()
};

/// Of sgd(), in the same way.
struct SgdCall {
  Tensor parameter, momentum_buffer;
  Tensor gradient;
  Tensor copy = {};
};

/// Numbers of one AdamW step (Loshchilov & Hutter 2019), as in torch.optim.AdamW. In double, as
/// torch has them: 1 - beta of a rounded beta is off, by 1.7e-4 of itself for 0.9999.
struct AdamwStep {
  double lr, beta1, beta2, eps, weight_decay;
  double correction1;     ///< 1 - beta1^t
  double correction2;     ///< 1 - beta2^t
  double gradient_scale;  ///< clip factor, folded in
};

/// Numbers of one SGD step with momentum as in torch.optim.SGD (no dampening, no Nesterov).
struct SgdStep {
  float lr, momentum, weight_decay, gradient_scale;
};

}  // namespace llamesh::ops
