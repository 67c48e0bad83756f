#pragma once

#include <cmath>

#include "ops/cuda/attention/attention.hpp"
#include "ops/cuda/vectorized.cuh"

/// Shared by all attention kernels: their arguments, the queries' positions, and the keys that a
/// query sees.
namespace LLAMESH_OPS_CUDA {

/// Queries [first, first + count) in a row. Their positions are neighbors, from `position` on.
struct QueryBlock {
  int first, count, position;

  /// Returns the position after the last query's.
  constexpr int end() const { return position + count; }
};

/// RowPositions as kernels use them: a row of queries has two runs with neighboring positions, or
/// one. Blocks of queries never cross from one run to the other.
struct QueryRuns {
  int queries;                    // in a row
  int second;                     // first query of the second run; `queries` if there is none
  int first_shift, second_shift;  // positions minus indices in each run

  explicit QueryRuns(const RowPositions& p)
      : queries(static_cast<int>(p.tokens)),
        second(static_cast<int>(p.adjoin() ? p.tokens : p.tokens / 2)),
        first_shift(static_cast<int>(p.first)),
        second_shift(static_cast<int>(p.second - p.tokens / 2)) {}

  /// Returns query i's position.
  constexpr int position(int i) const { return i + (i < second ? first_shift : second_shift); }
  /// Returns the first query in position `key` or later; `queries` if there is none.
  constexpr int first_query(int key) const {
    const int i = key - first_shift, j = key - second_shift;
    if (i < second) return i > 0 ? i : 0;
    return j < second ? second : (j < queries ? j : queries);
  }
  /// Returns the number of blocks in the first run.
  constexpr int first_blocks(int size) const { return (second + size - 1) / size; }
  /// Returns the number of blocks with up to `size` queries each.
  constexpr int blocks(int size) const {
    return first_blocks(size) + (queries - second + size - 1) / size;
  }
  /// Returns the block with query i.
  constexpr int block_of(int i, int size) const {
    return i < second ? i / size : first_blocks(size) + (i - second) / size;
  }
  constexpr QueryBlock block(int number, int size) const {
    const int before = first_blocks(size);
    const int first = number < before ? number * size : second + (number - before) * size;
    const int left = (number < before ? second : queries) - first;
    return {first, left < size ? left : size, position(first)};
  }
};

template <class T>
struct AttentionRows {
  Rows<const T> q, k, v;
  Rows<T> out;
  Rows<const T> dout;
  Rows<T> dq, dk, dv;
  float* log_sum_exp;                   // (B, H, T)
  float* delta;                         // (B, H, T)
  const std::int32_t* document_starts;  // (B, T) or null
  QueryRuns runs;
  int sequence, keys, heads, kv_heads, head_dim, value_dim;
  float scale;                // of the scores
  Rows<const float> cos_sin;  // (T, E) from rope(), or null
  int window;                 // keys that a query sees at most; 0: all
  float softcap;              // of the scores; 0: none

  __device__ __forceinline__ int group() const { return heads / kv_heads; }
  /// Returns the first query in a batch row.
  __device__ __forceinline__ std::int64_t first_token(int batch) const {
    return static_cast<std::int64_t>(batch) * sequence;
  }
  /// Returns the first key in a batch row.
  __device__ __forceinline__ std::int64_t first_key_token(int batch) const {
    return static_cast<std::int64_t>(batch) * keys;
  }
  /// Returns the offset to a head's statistics.
  __device__ __forceinline__ std::int64_t statistics(int batch, int head) const {
    return (static_cast<std::int64_t>(batch) * heads + head) * sequence;
  }
  /// Returns where the document of query `i` in a row starts.
  __device__ __forceinline__ int document_start(int batch, int i) const {
    return document_starts ? document_starts[first_token(batch) + i] : 0;
  }
  /// Returns the first key that query `i` in a row sees. Never decreases along a row.
  __device__ __forceinline__ int first_key(int batch, int i) const {
    const int start = document_start(batch, i), in_window = runs.position(i) - window + 1;
    return window > 0 && in_window > start ? in_window : start;
  }
  /// Returns true if first_key() may be above 0.
  __device__ __forceinline__ bool hides_earlier_keys() const {
    return document_starts != nullptr || window > 0;
  }
};

template <class T>
AttentionRows<T> attention_rows(const AttentionCall& c, const AttentionGradients& g = {}) {
  const auto& s = c.shape;
  const auto of = [](const Tensor& t) { return t ? t.as<float>() : nullptr; };
  const auto mine = [](const Tensor& t) { return t ? rows_of<T>(t) : Rows<T>{}; };
  const auto read = [](const Tensor& t) { return t ? rows_of<const T>(t) : Rows<const T>{}; };
  return {read(c.q),
          read(c.k),
          read(c.v),
          mine(c.out),
          read(g.dout),
          mine(g.dq),
          mine(g.dk),
          mine(g.dv),
          of(c.log_sum_exp),
          of(g.delta),
          c.document_starts ? c.document_starts.as<std::int32_t>() : nullptr,
          QueryRuns(s.positions),
          static_cast<int>(s.sequence),
          static_cast<int>(s.keys),
          static_cast<int>(s.heads),
          static_cast<int>(s.kv_heads),
          static_cast<int>(s.head_dim),
          static_cast<int>(s.value_dim),
          1.0F / s.score_divisor,
          g.cos_sin ? rows_of<const float>(g.cos_sin) : Rows<const float>{},
          s.window < s.keys ? static_cast<int>(s.window) : 0,
          s.softcap};
}

/// Below every score, and finite, so that differences are never NaN.
inline constexpr float no_score = -1.0e30F;

}  // namespace LLAMESH_OPS_CUDA
