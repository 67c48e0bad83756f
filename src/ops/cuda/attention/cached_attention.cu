#include "ops/cuda/attention/attention.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

#include <algorithm>
#include <cmath>

// One new token: memory-bound. Reads the keys and values once per head that shares them; all but
// the first read hit L2 cache. One block per query and head, so few heads do not fill the GPU. Many
// new tokens (a prompt): 2 (E + V) FLOPs per query, key and head, without tensor cores.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;
constexpr int usual_dims = static_cast<int>(max_head_dim) / 32;  // per lane
constexpr int latent_dims = 576 / 32;                            // of DeepSeek-V3's cached latents
constexpr int keys_at_once = 4;
constexpr float no_score = -1.0e30F;

template <class T>
struct Cached {
  Rows<T> out;
  Rows<const T> q, keys, values;
  float* log_sum_exp;  // (H, M), or null
  int group, head_dim, value_dim;
  std::int64_t past;
  float scale;
  std::int64_t window;
  float softcap;
};

/// A warp's running softmax state over the keys so far. Each lane has every 32nd dim.
template <int max_dims>
struct RunningSoftmax {
  float row_max = no_score, row_sum = 0;
  float mixed[max_dims] = {};
};

/// Processes `keys_at_once` keys; those from `end` on are ignored.
template <int max_dims, class T>
__device__ __forceinline__ void take_in(RunningSoftmax<max_dims>& seen, const Cached<T>& a,
                                        const float* q, std::int64_t key, std::int64_t end) {
  const int lane = threadIdx.x % 32;
  float scores[keys_at_once], new_max = seen.row_max;
#pragma unroll
  for (int k = 0; k < keys_at_once; ++k) {
    const bool real = key + k < end;
    scores[k] = 0;
#pragma unroll
    for (int i = 0; i < max_dims; ++i) {
      const int e = lane + 32 * i;
      if (real && e < a.head_dim) scores[k] += q[i] * load_one(a.keys[key + k] + e);
    }
    scores[k] = real ? warp_sum(scores[k]) * a.scale : 2.0F * no_score;
    if (real && a.softcap > 0) scores[k] = a.softcap * tanhf(scores[k] / a.softcap);
    new_max = fmaxf(new_max, scores[k]);
  }
  const float rescale = expf(seen.row_max - new_max);
  seen.row_max = new_max;
  seen.row_sum *= rescale;
#pragma unroll
  for (int i = 0; i < max_dims; ++i) seen.mixed[i] *= rescale;
#pragma unroll
  for (int k = 0; k < keys_at_once; ++k) {
    const float weight = expf(scores[k] - new_max);
    seen.row_sum += weight;
#pragma unroll
    for (int i = 0; i < max_dims; ++i) {
      const int e = lane + 32 * i;
      if (key + k < end && e < a.value_dim)
        seen.mixed[i] += weight * load_one(a.values[key + k] + e);
    }
  }
}

/// One query and head per block; its warps share the keys.
template <int max_dims, class T>
__global__ void __launch_bounds__(threads) attend(Cached<T> a) {
  auto* mixed = dynamic_shared_memory<float>();  // (warps, value_dim)
  auto* row_max = mixed + warps * a.value_dim;
  auto* row_sum = row_max + warps;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.y;
  a.keys.data += head / a.group * a.head_dim;  // this head's columns
  a.values.data += head / a.group * a.value_dim;
  const std::int64_t end = a.past + blockIdx.x + 1;
  const T* query = a.q[blockIdx.x] + head * a.head_dim;
  float q[max_dims];
#pragma unroll
  for (int i = 0; i < max_dims; ++i)
    q[i] = lane + 32 * i < a.head_dim ? load_one(query + lane + 32 * i) : 0.0F;
  RunningSoftmax<max_dims> seen;
  const std::int64_t begin = a.window > 0 && a.window < end ? end - a.window : 0;
  for (std::int64_t key = begin + warp * keys_at_once; key < end; key += warps * keys_at_once)
    take_in(seen, a, q, key, end);
#pragma unroll
  for (int i = 0; i < max_dims; ++i)
    if (lane + 32 * i < a.value_dim) mixed[warp * a.value_dim + lane + 32 * i] = seen.mixed[i];
  if (lane == 0) {
    row_max[warp] = seen.row_max;
    row_sum[warp] = seen.row_sum;
  }
  __syncthreads();
  float highest = no_score, sum = 0;
  for (int w = 0; w < warps; ++w) highest = fmaxf(highest, row_max[w]);
  for (int w = 0; w < warps; ++w) sum += row_sum[w] * expf(row_max[w] - highest);
  if (a.log_sum_exp != nullptr && threadIdx.x == 0)
    a.log_sum_exp[static_cast<std::int64_t>(head) * gridDim.x + blockIdx.x] = highest + logf(sum);
  for (int e = threadIdx.x; e < a.value_dim; e += threads) {
    float result = 0;
    for (int w = 0; w < warps; ++w)
      result += mixed[w * a.value_dim + e] * expf(row_max[w] - highest);
    store_one(a.out[blockIdx.x] + head * a.value_dim + e, result / sum);
  }
}

}  // namespace

void cached_attention(Stream& stream, const AttentionCall& c, std::int64_t past) {
  const AttentionShape& s = c.shape;
  const auto dims = std::max(s.head_dim, s.value_dim);
  expects(s.batch == 1 && c.q.rows() == s.sequence && c.k.rows() >= past + s.sequence &&
              c.k.rows() == c.v.rows() && c.out.rows() == c.q.rows() &&
              c.q.cols() == s.heads * s.head_dim && c.out.cols() == s.heads * s.value_dim &&
              c.k.cols() == s.kv_heads * s.head_dim && c.v.cols() == s.kv_heads * s.value_dim &&
              (!c.log_sum_exp || c.log_sum_exp.numel() == s.heads * s.sequence) &&
              dims <= 32 * latent_dims,
          "cached attention: {} queries after {}, {} keys, head dim {}, {} of a value", c.q.rows(),
          past, c.k.rows(), s.head_dim, s.value_dim);
  if (c.q.numel() == 0) return;
  with_type(c.q.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(dims <= max_head_dim ? &attend<usual_dims, T> : &attend<latent_dims, T>,
           {s.sequence, s.heads}, threads, (warps * s.value_dim + 2 * warps) * 4, stream,
           Cached<T>{rows_of<T>(c.out), rows_of<const T>(c.q), rows_of<const T>(c.k),
                     rows_of<const T>(c.v), c.log_sum_exp ? c.log_sum_exp.as<float>() : nullptr,
                     static_cast<int>(s.heads / s.kv_heads), static_cast<int>(s.head_dim),
                     static_cast<int>(s.value_dim), past, 1.0F / s.score_divisor, s.window,
                     s.softcap});
  });
}

}  // namespace LLAMESH_OPS_CUDA
