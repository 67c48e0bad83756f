#pragma once

#include <cmath>

#include "ops/cuda/attention/attention.hpp"
#include "ops/cuda/vectorized.cuh"

/// Shared by all attention kernels: their arguments, and the keys that a query sees.
namespace LLAMESH_OPS_CUDA {

template <class T>
struct AttentionRows {
  Rows<const T> q, k, v;
  Rows<T> out;
  Rows<const T> dout;
  Rows<T> dq, dk, dv;
  float* log_sum_exp;                   // (B, H, T)
  float* delta;                         // (B, H, T)
  const std::int32_t* document_starts;  // (B, T) or null
  int sequence, heads, kv_heads, head_dim;
  float scale;                // 1 / sqrt(E)
  Rows<const float> cos_sin;  // (T, E) from rope(), or null
  int window;                 // keys that a query sees at most; 0: all

  __device__ __forceinline__ int group() const { return heads / kv_heads; }
  /// Returns the first token in a batch row.
  __device__ __forceinline__ std::int64_t first_token(int batch) const {
    return static_cast<std::int64_t>(batch) * sequence;
  }
  /// Returns the offset to a head's statistics.
  __device__ __forceinline__ std::int64_t statistics(int batch, int head) const {
    return (static_cast<std::int64_t>(batch) * heads + head) * sequence;
  }
  /// Returns where the document of token `i` in a row starts.
  __device__ __forceinline__ int document_start(int batch, int i) const {
    return document_starts ? document_starts[first_token(batch) + i] : 0;
  }
  /// Returns the first key that query `i` in a row sees. Never decreases along a row.
  __device__ __forceinline__ int first_key(int batch, int i) const {
    const int start = document_start(batch, i), in_window = i - window + 1;
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
          static_cast<int>(s.sequence),
          static_cast<int>(s.heads),
          static_cast<int>(s.kv_heads),
          static_cast<int>(s.head_dim),
          1.0F / std::sqrt(static_cast<float>(s.head_dim)),
          g.cos_sin ? rows_of<const float>(g.cos_sin) : Rows<const float>{},
          s.window < s.sequence ? static_cast<int>(s.window) : 0};
}

/// Below every score, and finite, so that differences are never NaN.
inline constexpr float no_score = -1.0e30F;

}  // namespace LLAMESH_OPS_CUDA
