#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/norm_partials.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/scratch_bytes.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// total[i] = x[i] + delta[i].
template <class T>
void add_row(T* total, const T* x, const T* delta, std::int64_t cols) {
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    store(total + i, load(x + i, lanes) + load(delta + i, lanes), lanes);
  });
}

/// A row's variance, and its mean in two parts: `mean` as summed, and the `rest` that its rounding
/// left.
struct Moments {
  float mean, rest, variance;
};

/// Takes the deviations from `mean` in a second pass over the row, which is in cache: the mean of
/// squares less the square of the mean would cancel.
template <class T>
Moments moments_of(const T* x, std::int64_t cols) {
  const auto length = static_cast<float>(cols);
  Vec total{}, deviations{}, squares{};
  for_each_vec(cols, [&](std::int64_t i, auto lanes) { total += load(x + i, lanes); });
  const float mean = cpu::sum(total) / length;
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    const auto v = masked(load(x + i, lanes) - mean, lanes);
    deviations += v;
    squares += v * v;
  });
  const float rest = cpu::sum(deviations) / length;
  return {mean, rest, std::max(0.0F, cpu::sum(squares) / length - rest * rest)};
}

template <class T>
void forward(const LayerNormCall& c) {
  const auto cols = c.x.cols();
  const Rows<T> to(c.y), total(c.sum);
  const Rows<const T> from(c.x), added(c.delta);
  const auto *w = c.w.as<T>(), *b = c.b.as<T>();
  auto *mean = c.mean.as<float>(), *inverse = c.inverse_std.as<float>();
  for_each_block(c.x.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m) {
      if (added.data) add_row(total[m], from[m], added[m], cols);
      const T* row = added.data ? total[m] : from[m];
      const auto moments = moments_of(row, cols);
      mean[m] = moments.mean + moments.rest;
      inverse[m] = 1.0F / std::sqrt(moments.variance + c.eps);
      for_each_vec(cols, [&](std::int64_t i, auto lanes) {
        const auto normed = (load(row + i, lanes) - moments.mean - moments.rest) * inverse[m];
        store(to[m] + i, normed * load(w + i, lanes) + load(b + i, lanes), lanes);
      });
    }
  });
}

/// A row in the backward pass.
template <class T>
struct Row {
  const T *dy, *x, *w;
  float mean, inverse;
  std::int64_t cols;
};

/// Means over a row of g = dy w and of g n, where n is the normalized x.
struct Means {
  float g, gn;
};

/// dw_row += dy n, db_row += dy.
template <class T>
Means parameter_rows(float* dw_row, float* db_row, const Row<T>& r) {
  Vec g_sum{}, gn_sum{};
  for_each_vec(r.cols, [&](std::int64_t i, auto lanes) {
    const auto n = (load(r.x + i, lanes) - r.mean) * r.inverse;
    const auto dy = load(r.dy + i, lanes);
    const auto g = dy * load(r.w + i, lanes);
    store(dw_row + i, load(dw_row + i, lanes) + dy * n, lanes);
    store(db_row + i, load(db_row + i, lanes) + dy, lanes);
    g_sum += g;
    gn_sum += g * n;
  });
  const auto length = static_cast<float>(r.cols);
  return {cpu::sum(g_sum) / length, cpu::sum(gn_sum) / length};
}

/// dx = or += (g - mean(g) - n mean(g n)) / std.
template <class T>
void input_row(T* dx, Accumulate accumulate, const Row<T>& r, const Means& means) {
  for_each_vec(r.cols, [&](std::int64_t i, auto lanes) {
    const auto n = (load(r.x + i, lanes) - r.mean) * r.inverse;
    const auto g = load(r.dy + i, lanes) * load(r.w + i, lanes);
    auto result = (g - means.g - n * means.gn) * r.inverse;
    if (accumulate == Accumulate::yes) result += load(dx + i, lanes);
    store(dx + i, result, lanes);
  });
}

template <class T>
void backward(const LayerNormBackwardCall& c) {
  // Each token block sums its part of dw and db. The partition depends on the number of tokens
  // only.
  thread_local Scratch scratch;
  const auto rows = c.x.rows(), cols = c.x.cols();
  const auto block = norm_backward_block(rows);
  const auto blocks = (rows + block - 1) / block;
  auto* partial = reinterpret_cast<float*>(scratch.bytes(norm_backward_scratch(rows, 2 * cols)));
  const Rows<T> to(c.dx);
  const Rows<const T> slope(c.dy), from(c.x);
  const auto *mean = c.mean.as<float>(), *inverse = c.inverse_std.as<float>();
  for_each_block(rows, block, [&](std::int64_t first, std::int64_t last) {
    auto* dw_row = partial + first / block * 2 * cols;
    std::fill_n(dw_row, 2 * cols, 0.0F);
    for (auto m = first; m < last; ++m) {
      const Row<T> row{slope[m], from[m], c.w.as<T>(), mean[m], inverse[m], cols};
      const auto means = parameter_rows(dw_row, dw_row + cols, row);
      input_row(to[m], c.accumulate_dx, row, means);
    }
  });
  const auto add = [&](const Tensor& gradient, Accumulate accumulate, const float* parts) {
    with_type(gradient.dtype(), [&]<class W>(std::type_identity<W>) {
      add_partials<W>(gradient, accumulate, parts, blocks, 2 * cols);
    });
  };
  add(c.dw, c.accumulate_dw, partial);
  add(c.db, c.accumulate_db, partial + cols);
}

}  // namespace

void layer_norm(Stream& stream, const LayerNormCall& c) {
  expects(same_matrix_shape(c.y, c.x) && c.w.numel() == c.x.cols() && c.b.numel() == c.x.cols() &&
              c.mean.numel() == c.x.rows() && c.inverse_std.numel() == c.x.rows(),
          "layer_norm shapes");
  expects(static_cast<bool>(c.sum) == static_cast<bool>(c.delta), "layer_norm: delta without sum");
  expects(!c.delta || (same_matrix_shape(c.delta, c.x) && same_matrix_shape(c.sum, c.x)),
          "layer_norm shapes of delta and sum");
  stream.run(
      [=] { with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) { forward<T>(c); }); });
}

void layer_norm_backward(Stream& stream, const LayerNormBackwardCall& c) {
  expects(same_matrix_shape(c.dx, c.x) && same_matrix_shape(c.dy, c.x) &&
              c.w.numel() == c.x.cols() && (!c.dw || c.dw.numel() == c.x.cols()) &&
              (!c.db || c.db.numel() == c.x.cols()) && c.mean.numel() == c.x.rows() &&
              c.inverse_std.numel() == c.x.rows(),
          "layer_norm_backward shapes");
  stream.run(
      [=] { with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) { backward<T>(c); }); });
}

}  // namespace llamesh::ops::cpu
