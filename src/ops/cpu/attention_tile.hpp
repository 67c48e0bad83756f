#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ops/cpu/typed.hpp"
#include "ops/cpu/vec.hpp"
#include "ops/ops.hpp"

/// fp32 tiles for the attention kernels: in cache, all dims multiples of the vector width, tails
/// zeroed.
namespace llamesh::ops::cpu {

/// Queries per tile, and keys per tile.
inline constexpr std::int64_t tile = 64;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// A head's elements in tiles: in a query or key, and in a value, as whole vectors.
struct PaddedHead {
  explicit PaddedHead(const AttentionShape& s)
      : dims(round_up(s.head_dim, vec_width)), values(round_up(s.value_dim, vec_width)) {}
  std::int64_t dims, values;  ///< E' and V'
  /// Returns the greater one.
  std::int64_t widest() const { return std::max(dims, values); }
};

/// Interleaves the first (or second) half of the lanes in a and b.
template <bool second, std::size_t... lane>
inline Vec interleave(Vec a, Vec b, std::index_sequence<lane...> /*lanes*/) {
  constexpr std::int32_t first = second ? vec_width / 2 : 0;
  return __builtin_shuffle(a, b,
                           VecInt{(first + static_cast<std::int32_t>(lane / 2) +
                                   (lane % 2 == 0 ? 0 : static_cast<std::int32_t>(vec_width)))...});
}

/// to (cols, rows) = from (rows, cols) transposed; both are multiples of vec_width. Transposes each
/// square of vectors with log2(vec_width) perfect shuffles of its rows.
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

/// to (padded_rows, padded_cols) = factor * from (rows, cols), zero-padded.
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

/// to (rows, cols) = factor * the tile's upper-left part.
template <class T>
void store_tile(Rows<T> to, std::int64_t rows, std::int64_t cols, const float* from,
                std::int64_t from_stride, float factor = 1.0F) {
  for (std::int64_t r = 0; r < rows; ++r)
    for_each_vec(cols, [&](std::int64_t i, auto lanes) {
      store(to[r] + i, load(from + r * from_stride + i, Whole{}) * factor, lanes);
    });
}

/// Throws unless q, k and v have the shapes that attention() requires.
inline void expect_attention_shapes(const AttentionCall& c) {
  const auto& s = c.shape;
  const auto tokens = s.batch * s.sequence, keys = s.batch * s.keys;
  expects(s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "attention: {} heads share {} key-value heads", s.heads, s.kv_heads);
  expects(c.q.rows() == tokens && c.q.cols() == s.heads * s.head_dim && c.k.rows() == keys &&
              c.k.cols() == s.kv_heads * s.head_dim && c.v.rows() == keys &&
              c.v.cols() == s.kv_heads * s.value_dim,
          "attention: q ({}, {}), k ({}, {}), v ({}, {}) of {} tokens and {} keys", c.q.rows(),
          c.q.cols(), c.k.rows(), c.k.cols(), c.v.rows(), c.v.cols(), tokens, keys);
  expects(s.positions.tokens == s.sequence && s.positions[s.sequence - 1] < s.keys,
          "attention: {} queries in positions of {}, up to {}, and {} keys", s.sequence,
          s.positions.tokens, s.positions[s.sequence - 1], s.keys);
  expects(c.out.rows() == tokens && c.out.cols() == s.heads * s.value_dim &&
              c.log_sum_exp.dense() && c.log_sum_exp.numel() == s.heads * tokens,
          "attention: shapes of out and log_sum_exp");
}

inline void expect_attention_shapes(const AttentionCall& c, const AttentionGradients& g) {
  expects(same_matrix_shape(g.dout, c.out) && same_matrix_shape(g.dq, c.q) &&
              same_matrix_shape(g.dk, c.k) && same_matrix_shape(g.dv, c.v) && g.delta.dense() &&
              g.delta.numel() == c.log_sum_exp.numel() &&
              (!g.cos_sin || c.shape.keys == c.shape.sequence),
          "attention_backward: shapes of dout, dq, dk, dv and delta");
}

}  // namespace llamesh::ops::cpu
