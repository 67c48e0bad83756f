#include <array>

#include "ops/cpu/kernels.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// Columns that a thread sums together: whole cache lines of every row.
constexpr std::int64_t columns_per_block = 64;

template <class T, class B>
void add_to_rows(const Tensor& y, const Tensor& b) {
  const Rows<T> rows(y);
  const auto* bias = b.as<B>();
  for_each_block(y.rows(), rows_per_block(y.cols()), [&](std::int64_t first, std::int64_t last) {
    for (auto m = first; m < last; ++m)
      for_each_vec(y.cols(), [&](std::int64_t i, auto lanes) {
        store(rows[m] + i, load(rows[m] + i, lanes) + load(bias + i, lanes), lanes);
      });
  });
}

template <class T, class W>
void sum_columns(const Tensor& db, const Tensor& dy, Accumulate accumulate) {
  const Rows<const T> rows(dy);
  for_each_block(dy.cols(), columns_per_block, [&](std::int64_t first, std::int64_t last) {
    std::array<float, columns_per_block> sums{};
    for (std::int64_t m = 0; m < dy.rows(); ++m)
      for_each_vec(last - first, [&](std::int64_t i, auto lanes) {
        store(sums.data() + i, load(sums.data() + i, lanes) + load(rows[m] + first + i, lanes),
              lanes);
      });
    for_each_vec(last - first, [&](std::int64_t i, auto lanes) {
      auto* to = db.as<W>() + first + i;
      const auto sum = load(sums.data() + i, lanes);
      store(to, accumulate == Accumulate::yes ? load(to, lanes) + sum : sum, lanes);
    });
  });
}

}  // namespace

void add_bias(Stream& stream, Tensor y, Tensor b) {
  expects(y.cols() == b.numel(), "add_bias: {} to {} columns", b.numel(), y.cols());
  stream.run([=] {
    with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
      with_type(b.dtype(), [&]<class B>(std::type_identity<B>) { add_to_rows<T, B>(y, b); });
    });
  });
}

void column_sums(Stream& stream, Tensor db, Tensor dy, Accumulate accumulate) {
  expects(dy.cols() == db.numel(), "column_sums: {} sums of {} columns", db.numel(), dy.cols());
  stream.run([=] {
    with_type(dy.dtype(), [&]<class T>(std::type_identity<T>) {
      with_type(db.dtype(),
                [&]<class W>(std::type_identity<W>) { sum_columns<T, W>(db, dy, accumulate); });
    });
  });
}

}  // namespace llamesh::ops::cpu
