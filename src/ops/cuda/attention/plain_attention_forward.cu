#include "ops/cuda/attention/plain_attention.cuh"

// Compute-bound: 2 T^2 E H B multiply-adds at half the plain fp32 rate or less, because two in
// eight operands come from shared memory. For fp32 and other head dims; bf16 training uses the
// tensor cores.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace plain;

/// A thread's running state for its queries.
template <class S>
struct State {
  float sums[S::rows_each][S::dims_each] = {};
  float row_max[S::rows_each], row_sum[S::rows_each] = {};
  int first[S::rows_each];  // first visible key per query

  /// Scores become exp(score - row_max), or 0 for keys after the query or before its document.
  /// Earlier sums are rescaled to match.
  __device__ __forceinline__ void online_softmax_update(float (&scores)[S::rows_each][S::rows_each],
                                                        float scale, int q0, int k0) {
#pragma unroll
    for (int i = 0; i < S::rows_each; ++i) {
      const int query = q0 + my_y() + side * i;
      float new_max = row_max[i];
#pragma unroll
      for (int j = 0; j < S::rows_each; ++j) {
        const int key = k0 + my_x() + side * j;
        const bool seen = key <= query && key >= first[i];
        scores[i][j] = seen ? scores[i][j] * scale : 2.0F * no_score;
        new_max = fmaxf(new_max, scores[i][j]);
      }
      new_max = reduce_max_of_row(new_max);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < S::rows_each; ++j) sum += scores[i][j] = expf(scores[i][j] - new_max);
      const float rescale = expf(row_max[i] - new_max);
      row_sum[i] = row_sum[i] * rescale + reduce_sum_of_row(sum);
      row_max[i] = new_max;
#pragma unroll
      for (int j = 0; j < S::dims_each; ++j) sums[i][j] *= rescale;
    }
  }
};

/// One query tile in one head per block; tiles along grid x, longest first.
template <class S, class T>
__global__ void __launch_bounds__(threads) forward(AttentionRows<T> a) {
  auto* queries = dynamic_shared_memory<float>();
  auto* others = queries + S::token_words;  // keys, then values
  auto* weights = others + S::token_words;
  const int batch = blockIdx.z, head = blockIdx.y;
  const int q0 = (gridDim.x - 1 - blockIdx.x) * S::tile;
  const int count = a.sequence - q0 < S::tile ? a.sequence - q0 : S::tile;
  const auto token = a.first_token(batch);
  const int kv_col = head / a.group() * a.head_dim;
  load_tokens<S>(queries, a.q, token + q0, head * a.head_dim, count, a.head_dim);
  State<S> state;
#pragma unroll
  for (int i = 0; i < S::rows_each; ++i) {
    const int r = my_y() + side * i;
    state.row_max[i] = no_score;
    state.first[i] = r < count ? a.first_key(batch, q0 + r) : 0;
  }
  for (int k0 = a.first_key(batch, q0) / S::tile * S::tile; k0 < q0 + count; k0 += S::tile) {
    const int keys = a.sequence - k0 < S::tile ? a.sequence - k0 : S::tile;
    __syncthreads();  // the previous tile's values and weights are consumed
    load_tokens<S>(others, a.k, token + k0, kv_col, keys, a.head_dim);
    __syncthreads();
    float scores[S::rows_each][S::rows_each] = {};
    add_qk<S>(scores, queries, others, a.head_dim);
    state.online_softmax_update(scores, a.scale, q0, k0);
    store_scores<S>(weights, scores);
    __syncthreads();
    load_tokens<S>(others, a.v, token + k0, kv_col, keys, a.head_dim);
    __syncthreads();
    add_pv<S, false>(state.sums, weights, others);
  }
#pragma unroll
  for (int i = 0; i < S::rows_each; ++i) {
    const int r = my_y() + side * i;
#pragma unroll
    for (int j = 0; j < S::dims_each; ++j) state.sums[i][j] /= state.row_sum[i];
    if (my_x() == 0 && r < count)
      a.log_sum_exp[a.statistics(batch, head) + q0 + r] = state.row_max[i] + logf(state.row_sum[i]);
  }
  store_tokens<S>(a.out, token + q0, head * a.head_dim, count, a.head_dim, state.sums, 1.0F);
}

}  // namespace

void plain_attention(Stream& stream, const AttentionCall& call) {
  const auto& s = call.shape;
  with_type(call.q.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int tokens = 2;  // tiles
    with_sizes(s.head_dim, tokens, [&]<class S>(S) {
      launch(&forward<S, T>, {divide_up(s.sequence, S::tile), s.heads, s.batch}, threads,
             shared_bytes<S>(tokens), stream, attention_rows<T>(call));
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
