#include "ops/cuda/attention/plain_attention.cuh"

// Compute-bound like the forward pass, with 3.5 times the work: scores are computed twice, once for
// dq and once for dk and dv, so that one thread sums each element in a fixed order.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace plain;

/// Softmax probabilities P and dS = P (dO V^T - delta) * scale for one query tile and one key tile.
/// Rows are queries.
template <class S, class T>
struct SoftmaxGradient {
  float p[S::rows_each][S::rows_each];
  float ds[S::rows_each][S::rows_each];

  __device__ __forceinline__ void compute(const AttentionRows<T>& a, const float* q, const float* k,
                                          const float* dout, const float* v, int batch, int head,
                                          int q0, int k0) {
#pragma unroll
    for (int i = 0; i < S::rows_each; ++i) {
#pragma unroll
      for (int j = 0; j < S::rows_each; ++j) p[i][j] = ds[i][j] = 0;
    }
    add_qk<S>(p, q, k, a.head_dim);
    add_qk<S>(ds, dout, v, a.head_dim);
    const auto at = a.statistics(batch, head);
#pragma unroll
    for (int i = 0; i < S::rows_each; ++i) {
      const int query = q0 + my_y() + side * i;
      const bool real = query < a.sequence;
      const float log_sum_exp = real ? a.log_sum_exp[at + query] : 0.0F;
      const float delta = real ? a.delta[at + query] : 0.0F;
      const int first = real ? a.first_key(batch, query) : 0;
#pragma unroll
      for (int j = 0; j < S::rows_each; ++j) {
        const int key = k0 + my_x() + side * j;
        const bool seen = real && key <= query && key >= first;
        p[i][j] = seen ? expf(p[i][j] * a.scale - log_sum_exp) : 0.0F;
        ds[i][j] = p[i][j] * (ds[i][j] - delta) * a.scale;
      }
    }
  }
};

/// Computes dq for a query tile in one head.
template <class S, class T>
__global__ void __launch_bounds__(threads) backward_queries(AttentionRows<T> a) {
  auto* q = dynamic_shared_memory<float>();
  auto* dout = q + S::token_words;
  auto* k = dout + S::token_words;
  auto* v = k + S::token_words;
  auto* ds = v + S::token_words;
  const int batch = blockIdx.z, head = blockIdx.y;
  const int q0 = (gridDim.x - 1 - blockIdx.x) * S::tile;
  const int count = a.sequence - q0 < S::tile ? a.sequence - q0 : S::tile;
  const auto token = a.first_token(batch);
  const int col = head * a.head_dim, kv_col = head / a.group() * a.head_dim;
  load_tokens<S>(q, a.q, token + q0, col, count, a.head_dim);
  load_tokens<S>(dout, a.dout, token + q0, col, count, a.head_dim);
  float dq[S::rows_each][S::dims_each] = {};
  for (int k0 = a.first_key(batch, q0) / S::tile * S::tile; k0 < q0 + count; k0 += S::tile) {
    const int keys = a.sequence - k0 < S::tile ? a.sequence - k0 : S::tile;
    __syncthreads();  // the previous tile is consumed
    load_tokens<S>(k, a.k, token + k0, kv_col, keys, a.head_dim);
    load_tokens<S>(v, a.v, token + k0, kv_col, keys, a.head_dim);
    __syncthreads();
    SoftmaxGradient<S, T> mine;
    mine.compute(a, q, k, dout, v, batch, head, q0, k0);
    store_scores<S>(ds, mine.ds);
    __syncthreads();
    add_pv<S, false>(dq, ds, k);
  }
  store_tokens<S>(a.dq, token + q0, col, count, a.head_dim, dq, 1.0F);
}

/// Computes dk and dv for a key tile in one key-value head, summed over the query heads that share
/// it, one after another.
template <class S, class T>
__global__ void __launch_bounds__(threads, 1) backward_keys(AttentionRows<T> a) {
  auto* k = dynamic_shared_memory<float>();
  auto* v = k + S::token_words;
  auto* q = v + S::token_words;
  auto* dout = q + S::token_words;
  auto* scores = dout + S::token_words;
  const int batch = blockIdx.z, kv_head = blockIdx.y, k0 = blockIdx.x * S::tile;
  const int keys = a.sequence - k0 < S::tile ? a.sequence - k0 : S::tile;
  const auto token = a.first_token(batch);
  load_tokens<S>(k, a.k, token + k0, kv_head * a.head_dim, keys, a.head_dim);
  load_tokens<S>(v, a.v, token + k0, kv_head * a.head_dim, keys, a.head_dim);
  float dk[S::rows_each][S::dims_each] = {}, dv[S::rows_each][S::dims_each] = {};
  for (int head = kv_head * a.group(); head < (kv_head + 1) * a.group(); ++head)
    // Documents are contiguous: no query after this tile's documents sees its keys.
    for (int q0 = k0; q0 < a.sequence && a.first_key(batch, q0) < k0 + keys; q0 += S::tile) {
      const int count = a.sequence - q0 < S::tile ? a.sequence - q0 : S::tile;
      __syncthreads();  // the previous tile is consumed
      load_tokens<S>(q, a.q, token + q0, head * a.head_dim, count, a.head_dim);
      load_tokens<S>(dout, a.dout, token + q0, head * a.head_dim, count, a.head_dim);
      __syncthreads();
      SoftmaxGradient<S, T> mine;
      mine.compute(a, q, k, dout, v, batch, head, q0, k0);
      store_scores<S>(scores, mine.p);
      __syncthreads();
      add_pv<S, true>(dv, scores, dout);
      __syncthreads();
      store_scores<S>(scores, mine.ds);
      __syncthreads();
      add_pv<S, true>(dk, scores, q);
    }
  store_tokens<S>(a.dk, token + k0, kv_head * a.head_dim, keys, a.head_dim, dk, 1.0F);
  store_tokens<S>(a.dv, token + k0, kv_head * a.head_dim, keys, a.head_dim, dv, 1.0F);
}

}  // namespace

void plain_attention_backward(Stream& stream, const AttentionCall& call,
                              const AttentionGradients& gradients) {
  const auto& s = call.shape;
  with_type(call.q.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int tokens = 4;  // tiles
    with_sizes(s.head_dim, tokens, [&]<class S>(S) {
      const auto tiles = divide_up(s.sequence, S::tile);
      const auto bytes = shared_bytes<S>(tokens);
      const auto rows = attention_rows<T>(call, gradients);
      launch(&backward_queries<S, T>, {tiles, s.heads, s.batch}, threads, bytes, stream, rows);
      launch(&backward_keys<S, T>, {tiles, s.kv_heads, s.batch}, threads, bytes, stream, rows);
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
