#pragma once

#include "core/error.hpp"
#include "ops/calls.hpp"

/// Checks of norm calls, which all backends share.
namespace llamesh::ops {

/// Says whether a norm subtracts the mean (LayerNorm) or not (RMSNorm).
enum class NormKind : bool { rms, layer };

/// Checks what both directions have, and returns the groups in each row. More than one requires
/// `may_divide`, and an RMSNorm without row_sums.
template <class Call>
std::int64_t checked_groups(const Call& c, NormKind kind, bool may_divide) {
  const auto D = c.w.numel();
  const bool layer = kind == NormKind::layer;
  expects(c.x.cols() % D == 0 && c.inverse.numel() * D == c.x.numel() &&
              (D == c.x.cols() || (may_divide && !layer && !c.row_sums)),
          "norm: {} statistics and a weight of {} for ({}, {})", c.inverse.numel(), D, c.x.rows(),
          c.x.cols());
  expects(layer ? c.mean.numel() == c.inverse.numel() : !c.mean, "norm: only LayerNorm has means");
  expects(!c.row_sums || (!layer && c.row_sums.dims() == 2 && c.row_sums.size(1) == c.x.rows()),
          "norm: row sums of {} rows for {}", c.row_sums.cols(), c.x.rows());
  return c.x.cols() / D;
}

inline bool same_rows(const Tensor& a, const Tensor& b) {
  return a.rows() == b.rows() && a.cols() == b.cols();
}

/// Throws unless x, delta and sum fit each other.
inline void check_sum(const RowNormCall& c) {
  expects(static_cast<bool>(c.sum) == static_cast<bool>(c.delta), "norm: delta without sum");
  expects(!c.delta || (same_rows(c.delta, c.x) && same_rows(c.sum, c.x)),
          "norm: shapes of delta and sum");
}

/// Throws unless rms_norm_row_sums() or rms_norm_backward_row_sums() can write a sum per row.
inline void check_sums(const RowNormCall& c, const Tensor& sums) {
  expects(sums.numel() == c.x.rows(), "norm: {} sums of {} rows", sums.numel(), c.x.rows());
  check_sum(c);
}
inline void check_sums(const RowNormBackwardCall& c, const Tensor& sums) {
  expects(sums.numel() == c.x.rows() && same_rows(c.dy, c.x), "norm: {} sums of {} rows",
          sums.numel(), c.x.rows());
}

/// Throws unless the call's tensors fit each other; returns the groups in each row.
inline std::int64_t check(const RowNormCall& c, NormKind kind) {
  expects(same_rows(c.y, c.x) && (!c.b || (kind == NormKind::layer && c.b.numel() == c.w.numel())),
          "norm: shapes of the result and the bias");
  expects(!c.row_sums || !c.delta, "norm: row_sums are of the sum");
  check_sum(c);
  return checked_groups(c, kind, !c.delta);
}

inline std::int64_t check(const RowNormBackwardCall& c, NormKind kind) {
  const auto fits = [&](const Tensor& gradient) {
    return !gradient || gradient.numel() == c.w.numel();
  };
  expects(same_rows(c.dx, c.x) && same_rows(c.dy, c.x) && fits(c.dw) && fits(c.db) &&
              (!c.db || kind == NormKind::layer),
          "norm: shapes of gradients");
  return checked_groups(c, kind, true);
}

}  // namespace llamesh::ops
