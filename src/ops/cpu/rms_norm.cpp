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

/// total[i] = x[i] + delta[i]. Returns the sum of squares over the stored values.
template <class T>
float add_row(T* total, const T* x, const T* delta, std::int64_t cols) {
  Vec squares{};
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    store(total + i, load(x + i, lanes) + load(delta + i, lanes), lanes);
    const auto stored = load(total + i, lanes);  // rounded, as the backward pass will read it
    squares += stored * stored;
  });
  return cpu::sum(squares);
}

template <class T>
float square_row(const T* x, std::int64_t cols) {
  Vec squares{};
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    const auto v = load(x + i, lanes);
    squares += v * v;
  });
  return cpu::sum(squares);
}

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
    return load(weight + i, lanes) + offset;
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

template <class T>
void square_sums(const RmsNormCall& c, float* sums) {
  const auto cols = c.x.cols();
  const Rows<T> total(c.sum);
  const Rows<const T> from(c.x), added(c.delta);
  for_each_block(c.x.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m)
      sums[m] = added.data ? add_row(total[m], from[m], added[m], cols) : square_row(from[m], cols);
  });
}

template <class T>
void forward(const RmsNormCall& c) {
  const auto cols = c.w.numel();
  const float length = whole_row(c.row_sums, cols);
  const Groups<T> to(c.y, cols);
  const Groups<const T> from(c.x, cols);
  const Rows<T> total(c.sum);
  const Rows<const T> added(c.delta);
  const Scale<T> scale(c);
  auto* inverse = c.inverse_rms.as<float>();
  for_each_block(c.inverse_rms.numel(), rows_per_block(cols),
                 [&](std::int64_t first, std::int64_t last) {
                   for (auto m = first; m < last; ++m) {
                     const auto squares = c.row_sums   ? total_of(c.row_sums, m)
                                          : added.data ? add_row(total[m], from[m], added[m], cols)
                                                       : square_row(from[m], cols);
                     const T* row = added.data ? total[m] : from[m];
                     inverse[m] = 1.0F / std::sqrt(squares / length + c.eps);
                     const auto factor = broadcast(inverse[m]);
                     for_each_vec(cols, [&](std::int64_t i, auto lanes) {
                       store(to[m] + i, load(row + i, lanes) * factor * scale.at(i, lanes), lanes);
                     });
                   }
                 });
}

template <class T>
void product_sums(const RmsNormBackwardCall& c, float* sums) {
  const Rows<const T> slope(c.dy), from(c.x);
  const Scale<T> scale(c);
  const auto* inverse = c.inverse_rms.as<float>();
  const auto cols = c.x.cols();
  for_each_block(c.x.rows(), rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m) {
      Vec products{};
      for_each_vec(cols, [&](std::int64_t i, auto lanes) {
        products += load(slope[m] + i, lanes) * scale.at(i, lanes) *
                    (load(from[m] + i, lanes) * inverse[m]);
      });
      sums[m] = cpu::sum(products);
    }
  });
}

/// dw_row += dy * x / rms. Returns the sum of dy scale x / rms.
template <class T>
float weight_row(float* dw_row, const T* dy, const T* x, const Scale<T>& scale, float inverse,
                 std::int64_t cols) {
  Vec products{};
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    const auto normed = load(x + i, lanes) * inverse;
    const auto slope = load(dy + i, lanes);
    store(dw_row + i, load(dw_row + i, lanes) + slope * normed, lanes);
    products += slope * scale.at(i, lanes) * normed;
  });
  return cpu::sum(products);
}

/// dx for one row: with g = dy scale and n = x / rms, dx = (g - n mean(g n)) / rms.
template <class T>
void input_row(T* dx, Accumulate accumulate, const T* dy, const T* x, const Scale<T>& scale,
               float inverse, float mean, std::int64_t cols) {
  for_each_vec(cols, [&](std::int64_t i, auto lanes) {
    const auto normed = load(x + i, lanes) * inverse;
    auto result = (load(dy + i, lanes) * scale.at(i, lanes) - normed * mean) * inverse;
    if (accumulate == Accumulate::yes) result += load(dx + i, lanes);
    store(dx + i, result, lanes);
  });
}

template <class T>
void backward(const RmsNormBackwardCall& c) {
  // Each token block sums its part of dw. The partition depends on the number of tokens only.
  thread_local Scratch scratch;
  const auto rows = c.inverse_rms.numel(), cols = c.w.numel();
  const auto block = norm_backward_block(rows);
  const auto blocks = (rows + block - 1) / block;
  auto* partial = reinterpret_cast<float*>(scratch.bytes(norm_backward_scratch(rows, cols)));
  const Groups<T> to(c.dx, cols);
  const Groups<const T> slope(c.dy, cols), from(c.x, cols);
  const Scale<T> scale(c);
  const auto* inverse = c.inverse_rms.as<float>();
  const float length = whole_row(c.row_sums, cols);
  for_each_block(rows, block, [&](std::int64_t first, std::int64_t last) {
    auto* dw_row = partial + first / block * cols;
    std::fill_n(dw_row, cols, 0.0F);
    for (auto m = first; m < last; ++m) {
      const float own = weight_row(dw_row, slope[m], from[m], scale, inverse[m], cols);
      const float products = c.row_sums ? total_of(c.row_sums, m) : own;
      input_row(to[m], c.accumulate_dx, slope[m], from[m], scale, inverse[m], products / length,
                cols);
    }
  });
  with_type(c.dw.dtype(), [&]<class W>(std::type_identity<W>) {
    add_partials<W>(c.dw, c.accumulate_dw, partial, blocks, cols);
  });
}

/// Checks that x consists of whole groups, one for each of the `statistics`.
void check_groups(const Tensor& x, const Tensor& w, std::int64_t statistics, bool may_divide) {
  expects(x.cols() % w.numel() == 0 && statistics * w.numel() == x.numel() &&
              (may_divide || w.numel() == x.cols()),
          "rms_norm: {} statistics and a weight of {} for ({}, {})", statistics, w.numel(),
          x.rows(), x.cols());
}

void check_row_sums(const Tensor& row_sums, const Tensor& x) {
  expects(!row_sums || (row_sums.dims() == 2 && row_sums.size(1) == x.rows()),
          "row sums of {} rows for {}", row_sums.cols(), x.rows());
}

}  // namespace

void rms_norm(Stream& stream, const RmsNormCall& c) {
  expects(same_matrix_shape(c.y, c.x), "rms_norm shapes");
  check_groups(c.x, c.w, c.inverse_rms.numel(), !c.delta && !c.row_sums);
  expects(!c.row_sums || !c.delta, "rms_norm: row_sums are of the sum");
  check_row_sums(c.row_sums, c.x);
  expects(static_cast<bool>(c.sum) == static_cast<bool>(c.delta), "rms_norm: delta without sum");
  expects(!c.delta || (same_matrix_shape(c.delta, c.x) && same_matrix_shape(c.sum, c.x)),
          "rms_norm shapes of delta and sum");
  stream.run(
      [=] { with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) { forward<T>(c); }); });
}

void rms_norm_backward(Stream& stream, const RmsNormBackwardCall& c) {
  expects(same_matrix_shape(c.dx, c.x) && same_matrix_shape(c.dy, c.x) &&
              (!c.dw || c.dw.numel() == c.w.numel()),
          "rms_norm_backward shapes");
  check_groups(c.x, c.w, c.inverse_rms.numel(), !c.row_sums);
  check_row_sums(c.row_sums, c.x);
  stream.run(
      [=] { with_type(c.x.dtype(), [&]<class T>(std::type_identity<T>) { backward<T>(c); }); });
}

void rms_norm_row_sums(Stream& stream, const RmsNormCall& c, Tensor sums) {
  expects(sums.numel() == c.x.rows() && static_cast<bool>(c.sum) == static_cast<bool>(c.delta),
          "rms_norm_row_sums: {} sums of {} rows", sums.numel(), c.x.rows());
  stream.run([=] {
    with_type(c.x.dtype(),
              [&]<class T>(std::type_identity<T>) { square_sums<T>(c, sums.as<float>()); });
  });
}

void rms_norm_backward_row_sums(Stream& stream, const RmsNormBackwardCall& c, Tensor sums) {
  expects(sums.numel() == c.x.rows() && same_matrix_shape(c.dy, c.x),
          "rms_norm_backward_row_sums: {} sums of {} rows", sums.numel(), c.x.rows());
  stream.run([=] {
    with_type(c.x.dtype(),
              [&]<class T>(std::type_identity<T>) { product_sums<T>(c, sums.as<float>()); });
  });
}

}  // namespace llamesh::ops::cpu
