#include "ops/cuda/attention/attention_rows.cuh"

// Attention for any dtype, head dim and layout, as it is defined: a thread walks along a query's
// (or a key's) row of scores, with no tiles, shared memory or tensor cores. It serves fp32 and
// unusual shapes, and the tests of the other kernels; bf16 training uses the tensor cores.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 64;

/// Sums over a token's elements in one head.
struct Sums {
  float v[max_head_dim];

  __device__ __forceinline__ explicit Sums(int dims) {
    for (int e = 0; e < dims; ++e) v[e] = 0;
  }
  /// v = rescale * v + factor * token
  template <class T>
  __device__ __forceinline__ void add(const T* token, float factor, int dims,
                                      float rescale = 1.0F) {
    for (int e = 0; e < dims; ++e) v[e] = rescale * v[e] + factor * load_one(token + e);
  }
  template <class T>
  __device__ __forceinline__ void store(T* to, float factor, int dims) const {
    for (int e = 0; e < dims; ++e) store_one(to + e, factor * v[e]);
  }
};

template <class T>
__device__ __forceinline__ float dot(const T* a, const T* b, int dims) {
  float sum = 0;
  for (int e = 0; e < dims; ++e) sum += load_one(a + e) * load_one(b + e);
  return sum;
}

template <class T>
__device__ __forceinline__ float score_of(const AttentionRows<T>& a, const T* q, const T* k) {
  const float score = a.scale * dot(q, k, a.head_dim);
  return a.softcap > 0 ? a.softcap * tanhf(score / a.softcap) : score;
}

/// Returns this thread's query, or key, in the row.
__device__ __forceinline__ int my_token() {
  return blockIdx.x * threads + threadIdx.x;
}

/// A thread per query and head, with an online softmax over its keys.
template <class T>
__global__ void __launch_bounds__(threads) forward(AttentionRows<T> a) {
  const int query = my_token(), head = blockIdx.y, batch = blockIdx.z;
  if (query >= a.sequence) return;
  const auto token = a.first_token(batch);
  const auto keys = a.first_key_token(batch);
  const int kv_head = head / a.group(), E = a.head_dim, V = a.value_dim;
  const T* q = a.q[token + query] + head * E;
  Sums sums(V);
  float row_max = no_score, row_sum = 0;
  for (int key = a.first_key(batch, query); key <= a.runs.position(query); ++key) {
    const float score = score_of(a, q, a.k[keys + key] + kv_head * E);
    const float new_max = fmaxf(row_max, score);
    const float rescale = expf(row_max - new_max), p = expf(score - new_max);
    row_sum = row_sum * rescale + p;
    row_max = new_max;
    sums.add(a.v[keys + key] + kv_head * V, p, V, rescale);
  }
  sums.store(a.out[token + query] + head * V, 1.0F / row_sum, V);
  a.log_sum_exp[a.statistics(batch, head) + query] = row_max + logf(row_sum);
}

/// A weight p = exp(score - log_sum_exp), and the gradient ds = p (dp - delta) of its score before
/// the softcap.
struct Weight {
  float p, ds;

  template <class T>
  __device__ __forceinline__ Weight(const AttentionRows<T>& a, std::int64_t statistics, const T* q,
                                    const T* k, const T* dout, const T* v) {
    const float score = score_of(a, q, k);
    const float of_cap = a.softcap > 0 ? score / a.softcap : 0.0F;
    p = expf(score - a.log_sum_exp[statistics]);
    ds = p * (dot(dout, v, a.value_dim) - a.delta[statistics]) * (1.0F - of_cap * of_cap);
  }
};

/// Computes dq. A thread per query and head.
template <class T>
__global__ void __launch_bounds__(threads) backward_queries(AttentionRows<T> a) {
  const int query = my_token(), head = blockIdx.y, batch = blockIdx.z;
  if (query >= a.sequence) return;
  const auto token = a.first_token(batch);
  const auto keys = a.first_key_token(batch);
  const int kv_head = head / a.group(), E = a.head_dim, V = a.value_dim;
  const T* q = a.q[token + query] + head * E;
  const T* dout = a.dout[token + query] + head * V;
  Sums dq(E);
  for (int key = a.first_key(batch, query); key <= a.runs.position(query); ++key) {
    const T* k = a.k[keys + key] + kv_head * E;
    const T* v = a.v[keys + key] + kv_head * V;
    dq.add(k, Weight(a, a.statistics(batch, head) + query, q, k, dout, v).ds, E);
  }
  dq.store(a.dq[token + query] + head * E, a.scale, E);
}

/// Computes dk and dv. A thread per key and key-value head, over the queries of all heads that
/// share it, up to the last one that sees the key.
template <class T>
__global__ void __launch_bounds__(threads) backward_keys(AttentionRows<T> a) {
  const int key = my_token(), kv_head = blockIdx.y, batch = blockIdx.z;
  if (key >= a.keys) return;
  const int E = a.head_dim, V = a.value_dim;
  const auto token = a.first_token(batch), own = a.first_key_token(batch) + key;
  const T* k = a.k[own] + kv_head * E;
  const T* v = a.v[own] + kv_head * V;
  Sums dk(E), dv(V);
  for (int head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head)
    for (int query = a.runs.first_query(key);
         query < a.sequence && a.first_key(batch, query) <= key; ++query) {
      const T* q = a.q[token + query] + head * E;
      const T* dout = a.dout[token + query] + head * V;
      const Weight weight(a, a.statistics(batch, head) + query, q, k, dout, v);
      dk.add(q, weight.ds, E);
      dv.add(dout, weight.p, V);
    }
  dk.store(a.dk[own] + kv_head * E, a.scale, E);
  dv.store(a.dv[own] + kv_head * V, 1.0F, V);
}

}  // namespace

void plain_attention(Stream& stream, const AttentionCall& call) {
  const auto& s = call.shape;
  with_type(call.q.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&forward<T>, {divide_up(s.sequence, threads), s.heads, s.batch}, threads, 0, stream,
           attention_rows<T>(call));
  });
}

void plain_attention_backward(Stream& stream, const AttentionCall& call,
                              const AttentionGradients& gradients) {
  const auto& s = call.shape;
  with_type(call.q.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto rows = attention_rows<T>(call, gradients);
    launch(&backward_queries<T>, {divide_up(s.sequence, threads), s.heads, s.batch}, threads, 0,
           stream, rows);
    launch(&backward_keys<T>, {divide_up(s.keys, threads), s.kv_heads, s.batch}, threads, 0, stream,
           rows);
  });
}

}  // namespace LLAMESH_OPS_CUDA
