#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/vec.hpp"

/// Matrix products of fp32 tiles in cache. All dims are multiples of the vector width.
namespace llamesh::ops::cpu {

/// The left factor of a product, as it is stored or transposed: at(i, p) is its element in row i
/// and column p. Types of their own, so that one of the two strides is the constant 1.
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

/// What a sum starts from, given what c holds there: 0, c, or c times a factor for each column.
struct Overwrite {
  Vec operator()(const float* /*c*/, std::int64_t /*column*/) const { return Vec{}; }
};
struct Add {
  Vec operator()(const float* c, std::int64_t /*column*/) const { return load(c, Whole{}); }
};
struct RescaleAndAdd {
  const float* factors;
  Vec operator()(const float* c, std::int64_t column) const {
    return load(c, Whole{}) * load(factors + column, Whole{});
  }
};

/// Which matrix of c = a b is upper triangular (column >= row), as the tile of a causal mask is
/// that is on the diagonal. Below the squares of vec_width on its diagonal nothing is read or
/// written.
enum class UpperTriangular { none, a, b, c };

/// Rows of c that are summed at once: with two vectors of columns as many sums as the registers
/// hold (AVX-512 has 32 of them, AVX and SSE 16), and enough to hide the latency of the
/// multiply-adds.
inline constexpr int rows_at_once = vec_width == 16 ? 8 : 4;

/// Rows [i, i + rows_at_once) times columns [j, j + vecs * vec_width) of c, of the sum over
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
      store(c + (i + r) * c_stride + j + v * vec_width, sums[r][v], Whole{});
}

/// c (m, n) = start + a (m, k) b (k, n); the rows of b and c are contiguous.
template <UpperTriangular upper, class Left, class Start>
void multiply(float* c, std::int64_t c_stride, Left a, const float* b, std::int64_t b_stride,
              std::int64_t m, std::int64_t n, std::int64_t k, Start start) {
  // Two vectors of columns at a time: such a panel of b stays in the first-level cache.
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
