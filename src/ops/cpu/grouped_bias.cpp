#include <algorithm>
#include <array>
#include <span>

#include "ops/cpu/expert_starts.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// Returns the expert that has the row.
std::int64_t expert_of(std::int64_t row, std::span<const std::int32_t> starts) {
  return std::ranges::upper_bound(starts, row) - starts.begin() - 1;
}

/// Calls body(row, expert) for all rows, in blocks of `cols` columns.
template <class Body>
void for_each_row(std::int64_t rows, std::int64_t cols, const Tensor& starts, const Body& body) {
  const auto start = starts_of(starts, rows);
  for_each_block(rows, rows_per_block(cols), [&](std::int64_t first, std::int64_t last) {
    for (auto row = first, expert = expert_of(first, start); row < last; ++row) {
      while (row >= start[static_cast<std::size_t>(expert + 1)]) ++expert;
      body(row, expert);
    }
  });
}

/// Columns that a thread sums together: whole cache lines of every row.
constexpr std::int64_t columns_per_task = 64;

template <class T, class W>
void sum_rows(const GroupedBiasBackwardCall& c) {
  const Rows<const T> dy(c.dy);
  const Rows<W> sums(c.db);
  const auto experts = c.db.rows(), cols = c.db.cols();
  const auto per_expert = (cols + columns_per_task - 1) / columns_per_task;
  const auto* start = starts_of(c.starts, c.dy.rows()).data();
  for_each_task(experts * per_expert, [&](std::int64_t task) {
    const auto e = task / per_expert, first = task % per_expert * columns_per_task;
    const auto count = std::min(columns_per_task, cols - first);
    std::array<float, columns_per_task> totals{};
    for (std::int64_t row = start[e]; row < start[e + 1]; ++row) {
      const float weight = c.weights ? c.weights.as<float>()[row] : 1.0F;
      for_each_vec(count, [&](std::int64_t i, auto lanes) {
        auto* total = totals.data() + i;
        store(total, load(total, lanes) + weight * load(dy[row] + first + i, lanes), lanes);
      });
    }
    for_each_vec(count, [&](std::int64_t i, auto lanes) {
      auto* to = sums[e] + first + i;
      const auto total = load(totals.data() + i, lanes);
      store(to, c.accumulate == Accumulate::yes ? load(to, lanes) + total : total, lanes);
    });
  });
}

template <class T>
void add_dots(const GroupedBiasBackwardCall& c) {
  const Rows<const T> dy(c.dy), bias(c.b);
  const auto cols = c.dy.cols();
  for_each_row(c.dy.rows(), cols, c.starts, [&](std::int64_t row, std::int64_t expert) {
    Vec dots{};
    for_each_vec(cols, [&](std::int64_t i, auto lanes) {
      dots += load(dy[row] + i, lanes) * load(bias[expert] + i, lanes);
    });
    c.dweights.as<float>()[row] += sum(dots);
  });
}

}  // namespace

void grouped_bias(Stream& stream, Tensor y, Tensor b, Tensor starts) {
  expects(y.cols() == b.cols() && starts.numel() == b.rows() + 1, "grouped_bias shapes");
  stream.run([=] {
    with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
      with_type(b.dtype(), [&]<class B>(std::type_identity<B>) {
        const Rows<T> to(y);
        const Rows<const B> bias(b);
        for_each_row(y.rows(), y.cols(), starts, [&](std::int64_t row, std::int64_t expert) {
          for_each_vec(y.cols(), [&](std::int64_t i, auto lanes) {
            store(to[row] + i, load(to[row] + i, lanes) + load(bias[expert] + i, lanes), lanes);
          });
        });
      });
    });
  });
}

void grouped_bias_backward(Stream& stream, const GroupedBiasBackwardCall& c) {
  const auto rows = c.dy.rows(), experts = c.starts.numel() - 1;
  const auto is_bias = [&](const Tensor& t) {
    return t.rows() == experts && t.cols() == c.dy.cols();
  };
  const auto has_rows = [&](const Tensor& t) { return t.numel() == rows && t.dense(); };
  const bool takes_b = c.b && is_bias(c.b) && c.b.dtype() == c.dy.dtype();
  expects((!c.weights || has_rows(c.weights)) && (!c.db || is_bias(c.db)) &&
              (!c.dweights || (has_rows(c.dweights) && takes_b)),
          "grouped_bias_backward shapes");
  stream.run([=] {
    with_type(c.dy.dtype(), [&]<class T>(std::type_identity<T>) {
      if (c.dweights) add_dots<T>(c);
      if (c.db) with_type(c.db.dtype(), [&]<class W>(std::type_identity<W>) { sum_rows<T, W>(c); });
    });
  });
}

}  // namespace llamesh::ops::cpu
