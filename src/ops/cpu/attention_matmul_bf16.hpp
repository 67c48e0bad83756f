#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/cpu/attention_matmul.hpp"
#include "ops/cpu/attention_tile.hpp"
#include "ops/cpu/bf16_attention.hpp"
#include "ops/cpu/vec.hpp"

#ifdef LLAMESH_BF16_ATTENTION

/// Matrix products of fp32 tiles in cache, as attention_matmul.hpp, by the CPU's bf16 instructions.
namespace llamesh::ops::cpu {

// Both factors are rounded to bf16 with neighbors along the contracted dim in one 32-bit word: the
// left one (m, k') as rows, the right one (k' / 2, n) as rows of pairs. k' is k rounded up to
// whole tiles; what is behind k, and below the diagonal of a triangular factor, is zero.

inline constexpr std::int64_t tile_depth = 32;

/// Rounds two vectors and interleaves them: even elements from `first`.
inline Vec rounded_pair(Vec first, Vec second) {
  alignas(64) static constexpr auto order = [] {
    std::array<std::uint16_t, 32> lanes{};
    for (std::uint16_t i = 0; i < 32; ++i)
      lanes[i] = static_cast<std::uint16_t>(i / 2 + (i % 2 == 0 ? 0 : 16));
    return lanes;
  }();
  const auto both = std::bit_cast<__m512i>(
      _mm512_cvtne2ps_pbh(std::bit_cast<__m512>(second), std::bit_cast<__m512>(first)));
  return std::bit_cast<Vec>(_mm512_permutexvar_epi16(_mm512_load_si512(order.data()), both));
}

/// to (m, k') = a.
template <UpperTriangular upper>
void round_rows(float* to, Plain a, std::int64_t m, std::int64_t k) {
  const auto words = round_up(k, tile_depth) / 2;
  for (std::int64_t i = 0; i < m; ++i) {
    const auto* const from = a.data + i * a.stride;
    auto* const row = to + i * words;
    const auto first = upper == UpperTriangular::a ? i / vec_width * vec_width : 0;
    std::memset(row, 0, static_cast<std::size_t>(first) * 2);
    for (auto p = first; p < k; p += vec_width) {
      const auto rounded = _mm512_cvtneps_pbh(std::bit_cast<__m512>(load(from + p, Whole{})));
      std::memcpy(row + p / 2, &rounded, sizeof rounded);
    }
    std::memset(row + k / 2, 0, static_cast<std::size_t>(words - k / 2) * 4);
  }
}

/// to (k' / 2, n) = b (k, n).
template <UpperTriangular upper>
void round_pairs(float* to, const float* b, std::int64_t b_stride, std::int64_t k, std::int64_t n) {
  for (std::int64_t p = 0; p < k; p += 2) {
    auto* const row = to + p / 2 * n;
    const auto first = upper == UpperTriangular::b ? std::min(n, p / vec_width * vec_width) : 0;
    std::memset(row, 0, static_cast<std::size_t>(first) * 4);
    for (auto j = first; j < n; j += vec_width)
      store(row + j,
            rounded_pair(load(b + p * b_stride + j, Whole{}),
                         load(b + (p + 1) * b_stride + j, Whole{})),
            Whole{});
  }
  const auto rows = round_up(k, tile_depth) / 2;
  std::memset(to + k / 2 * n, 0, static_cast<std::size_t>((rows - k / 2) * n) * 4);
}

/// to (m, k') = a. `turned` is scratch.
inline void round_transposed(float* to, float* turned, Transposed a, std::int64_t m,
                             std::int64_t k) {
  const auto words = round_up(k, tile_depth) / 2;
  round_pairs<UpperTriangular::none>(turned, a.data, a.stride, k, m);
  transpose(to, words, turned, m, words, m);
}

/// Returns the words along the contracted dim that rows from i and columns to j have.
template <UpperTriangular upper>
std::pair<std::int64_t, std::int64_t> contracted_words(std::int64_t i, std::int64_t j_end,
                                                       std::int64_t k) {
  const auto first = upper == UpperTriangular::a ? i / tile_depth * tile_depth : 0;
  const auto last = upper == UpperTriangular::b ? std::min(k, j_end) : k;
  return {first / 2, round_up(last, tile_depth) / 2};
}

/// As multiply_block(), for words of two products.
template <UpperTriangular upper, int vecs, class Start>
void multiply_pairs_block(float* c, std::int64_t c_stride, const float* left, const float* right,
                          std::int64_t i, std::int64_t j, std::int64_t n, std::int64_t k,
                          Start start) {
  constexpr int rows = rows_at_once;
  const auto words = round_up(k, tile_depth) / 2;
  const auto [first, last] = contracted_words<upper>(i, j + vecs * vec_width, k);
  __m512 sums[rows][vecs];
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vecs; ++v)
      sums[r][v] = std::bit_cast<__m512>(
          start(c + (i + r) * c_stride + j + v * vec_width, j + v * vec_width));
  for (auto p = first; p < last; ++p) {
    __m512bh pairs[vecs];
    for (int v = 0; v < vecs; ++v)
      pairs[v] = std::bit_cast<__m512bh>(load(right + p * n + j + v * vec_width, Whole{}));
    for (int r = 0; r < rows; ++r) {
      const auto pair = std::bit_cast<__m512bh>(_mm512_set1_ps(left[(i + r) * words + p]));
      for (int v = 0; v < vecs; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], pair, pairs[v]);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vecs; ++v)
      store(c + (i + r) * c_stride + j + v * vec_width,
            finished(std::bit_cast<Vec>(sums[r][v]), start), Whole{});
}

/// c (m, n) = start + left right, by AVX-512.
template <UpperTriangular upper, class Start>
void multiply_pairs(float* c, std::int64_t c_stride, const float* left, const float* right,
                    std::int64_t m, std::int64_t n, std::int64_t k, Start start) {
  constexpr auto panel = 2 * vec_width;
  for (std::int64_t j = 0; j < n; j += panel)
    for (std::int64_t i = 0; i < m; i += rows_at_once) {
      const auto square = upper == UpperTriangular::c ? i / vec_width * vec_width : 0;
      const auto column = std::max(j, square);
      const auto width = std::min(j + panel, n) - column;
      if (width == panel)
        multiply_pairs_block<upper, 2>(c, c_stride, left, right, i, column, n, k, start);
      else if (width == vec_width)
        multiply_pairs_block<upper, 1>(c, c_stride, left, right, i, column, n, k, start);
    }
}

/// c (16, 16) = start + sums.
template <class Start>
void add_tile(float* c, std::int64_t c_stride, const float* sums, std::int64_t j, Start start) {
  for (std::int64_t r = 0; r < vec_width; ++r) {
    auto* const at = c + r * c_stride;
    store(at, finished(start(at, j) + load(sums + r * vec_width, Whole{}), start), Whole{});
  }
}

/// c (m, n) = start + left right, by AMX. The caller has TileRegisters.
template <UpperTriangular upper, class Start>
void multiply_tiles([[maybe_unused]] float* c, [[maybe_unused]] std::int64_t c_stride,
                    [[maybe_unused]] const float* left, [[maybe_unused]] const float* right,
                    [[maybe_unused]] float* sums, [[maybe_unused]] std::int64_t m,
                    [[maybe_unused]] std::int64_t n, [[maybe_unused]] std::int64_t k,
                    [[maybe_unused]] Start start) {
#ifdef __AMX_BF16__
  constexpr auto side = vec_width;  // of a tile of sums
  const auto words = round_up(k, tile_depth) / 2;
  const auto left_bytes = words * 4, right_bytes = n * 4;
  // g++'s _tile_loadd() does not say that it reads memory.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  for (std::int64_t j = 0; j < n; j += 2 * side)
    for (std::int64_t i = 0; i < m; i += side) {
      const bool one = j + side >= n;
      if (upper == UpperTriangular::c && (one ? j : j + side) < i) continue;
      const auto [first, last] = contracted_words<upper>(i, j + 2 * side, k);
      _tile_zero(0);
      _tile_zero(1);
      for (auto p = first; p < last; p += side) {
        _tile_loadd(2, left + i * words + p, left_bytes);
        _tile_loadd(3, right + p * n + j, right_bytes);
        _tile_dpbf16ps(0, 2, 3);
        if (one) continue;
        _tile_loadd(4, right + p * n + j + side, right_bytes);
        _tile_dpbf16ps(1, 2, 4);
      }
      _tile_stored(0, sums, side * 4);
      if (!one) _tile_stored(1, sums + side * side, side * 4);
      if (upper != UpperTriangular::c || j >= i)
        add_tile(c + i * c_stride + j, c_stride, sums, j, start);
      if (!one)
        add_tile(c + i * c_stride + j + side, c_stride, sums + side * side, j + side, start);
    }
#endif
}

}  // namespace llamesh::ops::cpu

#endif
