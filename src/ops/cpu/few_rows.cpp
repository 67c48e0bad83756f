#include "ops/cpu/few_rows.hpp"

#include "ops/cpu/parallel.hpp"
#include "ops/cpu/scratch.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"

namespace llamesh::ops::cpu {
namespace {

/// dots[r] = the dot product of w's row with row r of x, each over k numbers. Two sums a row keep
/// two additions under way.
template <int rows, class T>
void dot_products(float* dots, const T* w, Rows<const float> x, std::int64_t k) {
  Vec sums[rows][2] = {};
  std::int64_t i = 0;
  for (; i + 2 * vec_width <= k; i += 2 * vec_width)
    for (int half = 0; half < 2; ++half) {
      const Vec weight = load(w + i + half * vec_width, Whole{});
      for (int r = 0; r < rows; ++r)
        sums[r][half] += weight * load(x[r] + i + half * vec_width, Whole{});
    }
  for_each_vec(k - i, [&](std::int64_t j, auto lanes) {
    const Vec weight = load(w + i + j, lanes);
    for (int r = 0; r < rows; ++r) sums[r][0] += weight * load(x[r] + i + j, lanes);
  });
  for (int r = 0; r < rows; ++r) dots[r] = sum(sums[r][0] + sums[r][1]);
}

template <int rows, class T, class Y>
void multiply(Tensor y, Rows<const float> x, Tensor w, Accumulate accumulate) {
  const Rows<const T> weight(w);
  const Rows<Y> out(y);
  const auto k = w.cols();
  for_each_block(w.rows(), rows_per_block(k, 65536), [&](std::int64_t first, std::int64_t last) {
    for (auto o = first; o < last; ++o) {
      float dots[rows];
      dot_products<rows>(dots, weight[o], x, k);
      for (int r = 0; r < rows; ++r) {
        Y& to = out[r][o];
        to = Y(accumulate == Accumulate::yes ? static_cast<float>(to) + dots[r] : dots[r]);
      }
    }
  });
}

}  // namespace

void linear_of_few_rows(Tensor y, Tensor x, Tensor w, Accumulate accumulate) {
  expects(y.rows() == x.rows() && y.cols() == w.rows() && x.cols() == w.cols(),
          "linear: y ({}, {}), x ({}, {}), w ({}, {})", y.rows(), y.cols(), x.rows(), x.cols(),
          w.rows(), w.cols());
  thread_local static Scratch scratch;
  const Rows<float> wide(scratch.array<float>(x.rows() * x.cols()), x.cols());
  with_type(x.dtype(), [&]<class X>(std::type_identity<X>) {
    const Rows<const X> from(x);
    for (std::int64_t r = 0; r < x.rows(); ++r)
      for_each_vec(x.cols(), [&](std::int64_t i, auto lanes) {
        store(wide[r] + i, load(from[r] + i, lanes), lanes);
      });
  });
  const Rows<const float> in(wide.data, wide.stride);
  with_type(w.dtype(), [&]<class T>(std::type_identity<T>) {
    with_type(y.dtype(), [&]<class Y>(std::type_identity<Y>) {
      switch (x.rows()) {
        case 1:
          return multiply<1, T, Y>(y, in, w, accumulate);
        case 2:
          return multiply<2, T, Y>(y, in, w, accumulate);
        case 3:
          return multiply<3, T, Y>(y, in, w, accumulate);
        case 4:
          return multiply<4, T, Y>(y, in, w, accumulate);
        default:
          expects(x.rows() == 0, "linear_of_few_rows: {} rows", x.rows());
      }
    });
  });
}

}  // namespace llamesh::ops::cpu
