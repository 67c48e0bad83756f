#pragma once

#include <cstdint>
#include <utility>

#include "core/accumulate.hpp"
#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"
#include "ops/ops.hpp"

/// The pieces of which the attention kernels are made: fp32 tiles in cache, all of whose dims are
/// multiples of the vector width (tails are zeros), and a small matrix product.
namespace llamesh::ops::cpu {

/// Queries, and keys, per tile.
inline constexpr std::int64_t tile = 64;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// The left factor of a product: element (i, p) lies at i * row + p * col.
struct Left {
  const float* data;
  std::int64_t row, col;
};
inline Left plain(const float* data, std::int64_t stride) {
  return {data, stride, 1};
}
inline Left transposed(const float* data, std::int64_t stride) {
  return {data, 1, stride};
}

/// Four rows times `vecs` vectors of columns, held in registers over the whole sum.
template <int vecs, bool add>
[[gnu::always_inline]] inline void multiply_strip(float* c, std::int64_t c_stride, Left a,
                                                  const float* b, std::int64_t b_stride,
                                                  std::int64_t k) {
  Vec sums[4][vecs];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < vecs; ++j)
      sums[i][j] = add ? load(c + i * c_stride + j * vec_width, Whole{}) : Vec{};
  for (std::int64_t p = 0; p < k; ++p) {
    Vec right[vecs];
    for (int j = 0; j < vecs; ++j) right[j] = load(b + p * b_stride + j * vec_width, Whole{});
    for (int i = 0; i < 4; ++i) {
      const auto left = a.data[i * a.row + p * a.col];
      for (int j = 0; j < vecs; ++j) sums[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < vecs; ++j) store(c + i * c_stride + j * vec_width, sums[i][j], Whole{});
}

/// c (m, n) = or += a (m, k) b (k, n); m a multiple of 4, n of vec_width; rows of b and c
/// contiguous.
template <Accumulate accumulate>
void multiply(float* c, std::int64_t c_stride, Left a, const float* b, std::int64_t b_stride,
              std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr bool add = accumulate == Accumulate::yes;
  constexpr int vecs = vec_width == 16 ? 4 : 2;  // with 4 rows: as many sums as registers allow
  for (std::int64_t i = 0; i < m; i += 4) {
    const Left rows{a.data + i * a.row, a.row, a.col};
    auto* to = c + i * c_stride;
    std::int64_t j = 0;
    for (; j + vecs * vec_width <= n; j += vecs * vec_width)
      multiply_strip<vecs, add>(to + j, c_stride, rows, b + j, b_stride, k);
    for (; j < n; j += vec_width)
      multiply_strip<1, add>(to + j, c_stride, rows, b + j, b_stride, k);
  }
}

/// The first half of the lanes of a and b (or the second), taken in turn.
template <bool second, std::size_t... lane>
inline Vec interleave(Vec a, Vec b, std::index_sequence<lane...> /*lanes*/) {
  constexpr std::int32_t first = second ? vec_width / 2 : 0;
  return __builtin_shuffle(a, b,
                           VecInt{(first + static_cast<std::int32_t>(lane / 2) +
                                   (lane % 2 == 0 ? 0 : static_cast<std::int32_t>(vec_width)))...});
}

/// to (cols, rows) = from (rows, cols) transposed; both counts are multiples of vec_width. A square
/// of vectors is transposed by log2(vec_width) perfect shuffles of its rows.
inline void transpose(float* to, std::int64_t to_stride, const float* from,
                      std::int64_t from_stride, std::int64_t rows, std::int64_t cols) {
  constexpr auto width = static_cast<std::size_t>(vec_width);
  constexpr auto lanes = std::make_index_sequence<width>{};
  for (std::int64_t r = 0; r < rows; r += vec_width)
    for (std::int64_t c = 0; c < cols; c += vec_width) {
      Vec square[width];
      for (std::int64_t i = 0; i < vec_width; ++i)
        square[i] = load(from + (r + i) * from_stride + c, Whole{});
      for (std::int64_t step = 1; step < vec_width; step *= 2) {
        Vec next[width];
        for (std::size_t i = 0; i < width / 2; ++i) {
          next[2 * i] = interleave<false>(square[i], square[i + width / 2], lanes);
          next[2 * i + 1] = interleave<true>(square[i], square[i + width / 2], lanes);
        }
        for (std::size_t i = 0; i < width; ++i) square[i] = next[i];
      }
      for (std::int64_t i = 0; i < vec_width; ++i)
        store(to + (c + i) * to_stride + r, square[i], Whole{});
    }
}

/// to (padded_rows, padded_cols) = factor * from (rows, cols), zeros beyond.
template <class T>
void load_tile(float* to, std::int64_t padded_rows, std::int64_t padded_cols, Rows<const T> from,
               std::int64_t rows, std::int64_t cols, float factor = 1.0F) {
  const auto whole = round_up(cols, vec_width);
  for (std::int64_t r = 0; r < rows; ++r) {
    auto* row = to + r * padded_cols;
    for_each_vec(cols, [&](std::int64_t i, auto lanes) {
      store(row + i, load(from[r] + i, lanes) * factor, Whole{});
    });
    for (auto c = whole; c < padded_cols; ++c) row[c] = 0.0F;
  }
  for (auto i = rows * padded_cols; i < padded_rows * padded_cols; ++i) to[i] = 0.0F;
}

/// to (rows, cols) = factor * the tile's upper left part.
template <class T>
void store_tile(Rows<T> to, std::int64_t rows, std::int64_t cols, const float* from,
                std::int64_t from_stride, float factor = 1.0F) {
  for (std::int64_t r = 0; r < rows; ++r)
    for_each_vec(cols, [&](std::int64_t i, auto lanes) {
      store(to[r] + i, load(from + r * from_stride + i, Whole{}) * factor, lanes);
    });
}

/// Throws unless q, k and v have the shapes that attention() wants.
inline void expect_attention_shapes(const AttentionShape& s, const Tensor& q, const Tensor& k,
                                    const Tensor& v) {
  const auto tokens = s.batch * s.sequence;
  expects(s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "attention: {} heads share {} key-value heads", s.heads, s.kv_heads);
  expects(q.rows() == tokens && q.cols() == s.heads * s.head_dim && k.rows() == tokens &&
              k.cols() == s.kv_heads * s.head_dim && same_matrix_shape(k, v),
          "attention: q ({}, {}), k ({}, {}) of {} tokens", q.rows(), q.cols(), k.rows(), k.cols(),
          tokens);
}

/// Of a tile on the diagonal: which queries [column, column + vec_width) see a key (those not
/// before it).
inline VecInt sees(std::int64_t column, std::int64_t key) {
  VecInt query;
  for (std::int64_t i = 0; i < vec_width; ++i) query[i] = static_cast<std::int32_t>(column + i);
  return query >= static_cast<std::int32_t>(key);
}

}  // namespace llamesh::ops::cpu
