#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/vec.hpp"

/// Matrix products on fp32 tiles in cache. All dims are multiples of the vector width.
namespace llamesh::ops::cpu {

/// Left factor in a product, as stored or transposed: at(i, p) is the element in row i, column p.
/// Two types, so that one stride is the constant 1.
struct Plain {
  const float* data;
  std::int64_t stride;
  float at(std::int64_t i, std::int64_t p) const { return data[i * stride + p]; }
};
struct Transposed {
  const float* data;
  std::int64_t stride;
  float at(std::int64_t i, std::int64_t p) const { return data[p * stride + i]; }
};

/// Initial value for a sum, given what c holds: 0, c, or c times a per-column factor.
struct Overwrite {
  Vec operator()(const float* /*c*/, std::int64_t /*column*/) const { return Vec{}; }
};
struct Add {
  Vec operator()(const float* c, std::int64_t /*column*/) const { return load(c, Whole{}); }
};
/// A sum that replaces c, times a factor.
struct Scale {
  float factor;
  Vec operator()(const float* /*c*/, std::int64_t /*column*/) const { return Vec{}; }
};
struct RescaleAndAdd {
  const float* factors;
  Vec operator()(const float* c, std::int64_t column) const {
    return load(c, Whole{}) * load(factors + column, Whole{});
  }
};

/// Returns the result for a sum, which began with `start`.
template <class Start>
Vec finished(Vec sum, Start start) {
  if constexpr (std::is_same_v<Start, Scale>)
    return sum * start.factor;
  else
    return sum;
}

/// The upper triangular matrix (column >= row) in c = a b, such as the diagonal tile of a causal
/// mask. Nothing below the vec_width squares on its diagonal is read or written.
enum class UpperTriangular { none, a, b, c };

/// Rows of c summed at once. With two column vectors the sums fill the registers (AVX-512 has 32,
/// AVX and SSE 16) and hide the multiply-add latency.
inline constexpr int rows_at_once = vec_width == 16 ? 8 : 4;

/// Computes rows [i, i + rows_at_once) and columns [j, j + vecs * vec_width) of c, summing over
/// [first, last), which are multiples of 4.
template <int vecs, class Left, class Start>
void multiply_block(float* c, std::int64_t c_stride, Left a, const float* b, std::int64_t b_stride,
                    std::int64_t i, std::int64_t j, std::int64_t first, std::int64_t last,
                    Start start) {
  constexpr int rows = rows_at_once;
  Vec sums[rows][vecs];
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vecs; ++v)
      sums[r][v] = start(c + (i + r) * c_stride + j + v * vec_width, j + v * vec_width);
  const auto step = [&](std::int64_t p) __attribute__((always_inline)) {
    Vec right[vecs];
    for (int v = 0; v < vecs; ++v) right[v] = load(b + p * b_stride + j + v * vec_width, Whole{});
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vecs; ++v) sums[r][v] += a.at(i + r, p) * right[v];
  };
  for (auto p = first; p < last; p += 4) {  // unrolled
    step(p);
    step(p + 1);
    step(p + 2);
    step(p + 3);
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vecs; ++v)
      store(c + (i + r) * c_stride + j + v * vec_width, finished(sums[r][v], start), Whole{});
}

/// c (m, n) = start + a (m, k) b (k, n). Rows in b and c are contiguous.
template <UpperTriangular upper, class Left, class Start>
void multiply(float* c, std::int64_t c_stride, Left a, const float* b, std::int64_t b_stride,
              std::int64_t m, std::int64_t n, std::int64_t k, Start start) {
  // Two column vectors at a time: this panel of b stays in L1 cache.
  constexpr auto panel = (upper == UpperTriangular::b ? 1 : 2) * vec_width;
  for (std::int64_t j = 0; j < n; j += panel)
    for (std::int64_t i = 0; i < m; i += rows_at_once) {
      const auto first = upper == UpperTriangular::a ? i : 0;
      const auto last = upper == UpperTriangular::b ? std::min(k, j + vec_width) : k;
      const auto square = upper == UpperTriangular::c ? i / vec_width * vec_width : 0;
      const auto column = std::max(j, square);
      const auto width = std::min(j + panel, n) - column;
      if (width == 2 * vec_width)
        multiply_block<2>(c, c_stride, a, b, b_stride, i, column, first, last, start);
      else if (width == vec_width)
        multiply_block<1>(c, c_stride, a, b, b_stride, i, column, first, last, start);
    }
}

}  // namespace llamesh::ops::cpu
