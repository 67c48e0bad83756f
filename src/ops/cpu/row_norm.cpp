#include "ops/row_norm.hpp"

#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/scratch_bytes.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// Returns a row's sum over all ranks' columns, in rank order.
float total_of(const Tensor& row_sums, std::int64_t row) {
  const Rows<const float> parts(row_sums);
  float total = 0;
  for (std::int64_t t = 0; t < row_sums.size(0); ++t) total += parts[t][row];
  return total;
}

/// Returns the full row length; a rank holds `cols` columns of it.
float whole_row(const Tensor& row_sums, std::int64_t cols) {
  return static_cast<float>(row_sums ? row_sums.size(0) * cols : cols);
}

/// The scale of a row's elements: a weight and its offset.
template <class T>
struct Scale {
  const T* weight;
  float offset;
  explicit Scale(const auto& call) : weight(call.w.template as<T>()), offset(call.offset) {}
  template <class Lanes>
  [[gnu::always_inline]] Vec at(std::int64_t i, Lanes lanes) const {
    const auto w = load(weight + i, lanes);
    return offset == 0 ? w : w + offset;
  }
};

/// The groups of columns that a weight of `cols` elements divides a matrix into, as rows of their
/// own.
template <class T>
struct Groups {
  Groups(const Tensor& matrix, std::int64_t cols_of_group)
      : rows(matrix), per_row(matrix.cols() / cols_of_group), cols(cols_of_group) {}
  T* operator[](std::int64_t group) const { return rows[group / per_row] + group % per_row * cols; }
  Rows<T> rows;
  std::int64_t per_row, cols;
};

/// total = x + delta, unless delta is null. Returns the row that is normalized.
template <class T>
const T* add_row(T* total, const T* x, const T* delta, std::int64_t cols) {
  if (delta == nullptr) return x;
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    store(total + i, load(x + i, lanes) + load(delta + i, lanes), lanes);
  });
  return total;
}

/// Returns the sum over a row of x^2, or of x for LayerNorm.
template <NormKind kind, class T>
float sum_row(const T* x, std::int64_t cols) {
  Vec sums{};
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    const auto v = load(x + i, lanes);
    if constexpr (kind == NormKind::rms)
      sums += v * v;
    else
      sums += v;
  });
  return cpu::sum(sums);
}

/// A row's variance, and its mean in two parts: `mean` as summed, and the `rest` that its rounding
/// left. RMSNorm has no mean, and its variance is the mean of squares.
struct Moments {
  float mean, rest, variance;
};

/// Takes the deviations from `mean` in a second pass over the row, which is in cache: the mean of
/// squares less the square of the mean would cancel.
template <class T>
Moments moments_of(const T* x, float mean, std::int64_t cols) {
  const auto length = static_cast<float>(cols);
  Vec deviations{}, squares{};
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    const auto v = masked(load(x + i, lanes) - mean, lanes);
    deviations += v;
    squares += v * v;
  });
  const float rest = cpu::sum(deviations) / length;
  return {mean, rest, std::max(0.0F, cpu::sum(squares) / length - rest * rest)};
}

/// y = normalized x * scale + b.
template <NormKind kind, class T>
void write_row(T* y, const T* x, const Moments& moments, float inverse, const Scale<T>& scale,
               const T* b, std::int64_t cols) {
  const auto scaled = [&](std::int64_t i, auto lanes) {
    auto v = load(x + i, lanes);
    if constexpr (kind == NormKind::layer) v = v - moments.mean - moments.rest;
    return v * inverse * scale.at(i, lanes);
  };
  if (b != nullptr)
    for_each_vec(cols, [&](std::int64_t i, auto lanes) {
      store(y + i, scaled(i, lanes) + load(b + i, lanes), lanes);
    });
  else
    for_each_vec(cols, [&](std::int64_t i, auto lanes) { store(y + i, scaled(i, lanes), lanes); });
}

template <NormKind kind, class T>
void forward(const RowNormCall& c) {
  const auto cols = c.w.numel();
  const float length = whole_row(c.row_sums, cols);
  const Groups<T> to(c.y, cols);
  const Groups<const T> from(c.x, cols);
  const Rows<T> total(c.sum);
  const Rows<const T> added(c.delta);
  const Scale<T> scale(c);
  const auto* b = c.b ? c.b.as<T>() : nullptr;
  auto *mean = c.mean ? c.mean.as<float>() : nullptr, *inverse = c.inverse.as<float>();
  for_each_block(
      c.inverse.numel(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
        for (auto m = first; m < last; ++m) {
          const T* row = add_row(total[m], from[m], added[m], cols);
          const float sum = c.row_sums ? total_of(c.row_sums, m) : sum_row<kind>(row, cols);
          Moments moments{0, 0, sum / length};
          if constexpr (kind == NormKind::layer) {
            moments = moments_of(row, sum / length, cols);
            mean[m] = moments.mean + moments.rest;
          }
          inverse[m] = 1.0F / std::sqrt(moments.variance + c.eps);
          write_row<kind>(to[m], row, moments, inverse[m], scale, b, cols);
        }
      });
}

/// A row in the backward pass. n is the normalized x, and g = dy scale.
template <NormKind kind, class T>
struct BackwardRow {
  const T *dy, *x;
  Scale<T> scale;
  float mean, inverse;
  std::int64_t cols;

  template <class Lanes>
  [[gnu::always_inline]] Vec n(std::int64_t i, Lanes lanes) const {
    if constexpr (kind == NormKind::layer)
      return (load(x + i, lanes) - mean) * inverse;
    else
      return load(x + i, lanes) * inverse;
  }
};

/// Sums over a row.
struct BackwardSums {
  float g;  ///< for LayerNorm
  float gn;
};

/// dw += dy n, db += dy. Nulls: not wanted.
template <NormKind kind, class T>
[[gnu::always_inline]] inline BackwardSums sum_backward(float* dw, float* db,
                                                        const BackwardRow<kind, T> row) {
  Vec g_sums{}, gn_sums{};
  for_each_vec(row.cols, [&](std::int64_t i, auto lanes) {
    const auto n = row.n(i, lanes);
    const auto dy = load(row.dy + i, lanes);
    const auto g = dy * row.scale.at(i, lanes);
    if (dw != nullptr) store(dw + i, load(dw + i, lanes) + dy * n, lanes);
    if (db != nullptr) store(db + i, load(db + i, lanes) + dy, lanes);
    if constexpr (kind == NormKind::layer) g_sums += g;
    gn_sums += g * n;
  });
  return {kind == NormKind::layer ? cpu::sum(g_sums) : 0, cpu::sum(gn_sums)};
}

/// dx = or += (g - mean(g) - n mean(g n)) inverse, for RMSNorm without mean(g).
template <NormKind kind, class T>
[[gnu::always_inline]] inline void input_row(T* dx, Accumulate accumulate,
                                             const BackwardRow<kind, T> row, float g_mean,
                                             float gn_mean) {
  for_each_vec(row.cols, [&](std::int64_t i, auto lanes) {
    auto g = load(row.dy + i, lanes) * row.scale.at(i, lanes);
    if constexpr (kind == NormKind::layer) g -= g_mean;
    auto result = (g - row.n(i, lanes) * gn_mean) * row.inverse;
    if (accumulate == Accumulate::yes) result += load(dx + i, lanes);
    store(dx + i, result, lanes);
  });
}

/// dw (D), unless it is empty, = or += the sum of the blocks' partial gradients, block by block;
/// `stride` elements from one to the next.
void add_partials(const Tensor& dw, Accumulate accumulate, const float* partial,
                  std::int64_t blocks, std::int64_t stride) {
  if (!dw) return;
  with_type(dw.dtype(), [&]<class W>(std::type_identity<W>) {
    auto* to = dw.as<W>();
    for_each_vec(dw.numel(), [&](std::int64_t i, auto lanes) {
      auto total = accumulate == Accumulate::yes ? load(to + i, lanes) : Vec{};
      for (std::int64_t b = 0; b < blocks; ++b) total += load(partial + b * stride + i, lanes);
      store(to + i, total, lanes);
    });
  });
}

template <NormKind kind, class T>
void backward(const RowNormBackwardCall& c) {
  // Each token block sums its part of dw and db. The partition depends on the number of tokens
  // only.
  thread_local Scratch scratch;
  const auto rows = c.inverse.numel(), cols = c.w.numel(), both = c.db ? 2 * cols : cols;
  const auto block = norm_backward_block(rows);
  const auto blocks = (rows + block - 1) / block;
  auto* partial = reinterpret_cast<float*>(scratch.bytes(norm_backward_scratch(rows, both)));
  const Groups<T> to(c.dx, cols);
  const Groups<const T> slope(c.dy, cols), from(c.x, cols);
  const Scale<T> scale(c);
  const auto *mean = c.mean ? c.mean.as<float>() : nullptr, *inverse = c.inverse.as<float>();
  const float length = whole_row(c.row_sums, cols);
  for_each_block(rows, block, [&](std::int64_t first, std::int64_t last) {
    auto* dw = partial + first / block * both;
    auto* db = c.db ? dw + cols : nullptr;
    std::fill_n(dw, both, 0.0F);
    for (auto m = first; m < last; ++m) {
      const BackwardRow<kind, T> row{slope[m],           from[m],    scale,
                                     mean ? mean[m] : 0, inverse[m], cols};
      const auto sums = sum_backward(dw, db, row);
      input_row(to[m], c.accumulate_dx, row, sums.g / length,
                (c.row_sums ? total_of(c.row_sums, m) : sums.gn) / length);
    }
  });
  add_partials(c.dw, c.accumulate_dw, partial, blocks, both);
  add_partials(c.db, c.accumulate_db, partial + cols, blocks, both);
}

template <NormKind kind>
void forward_on(Stream& stream, const RowNormCall& c) {
  check(c, kind);
  stream.run([=] {
    with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) { forward<kind, T>(c); });
  });
}

template <NormKind kind>
void backward_on(Stream& stream, const RowNormBackwardCall& c) {
  check(c, kind);
  stream.run([=] {
    with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) { backward<kind, T>(c); });
  });
}

/// sums[m] = row_sum(m) for each row, on the stream.
template <class RowSum>
void write_sums(const Tensor& sums, std::int64_t cols, const RowSum& row_sum) {
  auto* to = sums.as<float>();
  for_each_block(sums.numel(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m) to[m] = row_sum(m);
  });
}

}  // namespace

void rms_norm(Stream& stream, const RowNormCall& c) {
  forward_on<NormKind::rms>(stream, c);
}

void layer_norm(Stream& stream, const RowNormCall& c) {
  forward_on<NormKind::layer>(stream, c);
}

void rms_norm_backward(Stream& stream, const RowNormBackwardCall& c) {
  backward_on<NormKind::rms>(stream, c);
}

void layer_norm_backward(Stream& stream, const RowNormBackwardCall& c) {
  backward_on<NormKind::layer>(stream, c);
}

void rms_norm_row_sums(Stream& stream, const RowNormCall& c, Tensor sums) {
  check_sums(c, sums);
  stream.run([=] {
    with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<T> total(c.sum);
      const Rows<const T> from(c.x), added(c.delta);
      write_sums(sums, c.x.cols(), [&](std::int64_t m) {
        return sum_row<NormKind::rms>(add_row(total[m], from[m], added[m], c.x.cols()), c.x.cols());
      });
    });
  });
}

void rms_norm_backward_row_sums(Stream& stream, const RowNormBackwardCall& c, Tensor sums) {
  check_sums(c, sums);
  stream.run([=] {
    with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) {
      const Rows<const T> slope(c.dy), from(c.x);
      const Scale<T> scale(c);
      const auto* inverse = c.inverse.as<float>();
      write_sums(sums, c.x.cols(), [&](std::int64_t m) {
        const BackwardRow<NormKind::rms, T> row{slope[m], from[m],    scale,
                                                0,        inverse[m], c.x.cols()};
        return sum_backward(nullptr, nullptr, row).gn;
      });
    });
  });
}

}  // namespace llamesh::ops::cpu
