#include "ops/cuda/plain_attention.cuh"

// Bound by arithmetic: 2 T^2 E H B multiply-adds at half of the plain fp32 rate or less, since two
// operands in eight come from shared memory each time. It is there for fp32 and for other head
// dims; training in bf16 takes the tensor cores.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace plain;

/// What a thread knows of its queries so far.
template <class S>
struct State {
  float sums[S::rows_each][S::dims_each] = {};
  float most[S::rows_each], total[S::rows_each] = {};
  int first[S::rows_each];  // the first key that each sees

  /// Scores become exp(score - most so far), 0 for keys after the query or before its document,
  /// and what was summed is scaled to that.
  __device__ __forceinline__ void soften(float (&scores)[S::rows_each][S::rows_each], float scale,
                                         int q0, int k0) {
    LLAMESH_UNROLL
    for (int i = 0; i < S::rows_each; ++i) {
      const int query = q0 + my_y() + side * i;
      float higher = most[i];
      LLAMESH_UNROLL
      for (int j = 0; j < S::rows_each; ++j) {
        const int key = k0 + my_x() + side * j;
        const bool seen = key <= query && key >= first[i];
        scores[i][j] = seen ? scores[i][j] * scale : 2.0F * no_score;
        higher = most_of(higher, scores[i][j]);
      }
      higher = row_max(higher);
      float sum = 0;
      LLAMESH_UNROLL
      for (int j = 0; j < S::rows_each; ++j) sum += scores[i][j] = exp_of(scores[i][j] - higher);
      const float kept = exp_of(most[i] - higher);
      total[i] = total[i] * kept + row_sum(sum);
      most[i] = higher;
      LLAMESH_UNROLL
      for (int j = 0; j < S::dims_each; ++j) sums[i][j] *= kept;
    }
  }
};

/// A tile of queries of one head a block; along x the tiles, the longest first.
template <class S, class T>
__global__ void __launch_bounds__(threads) forward(AttentionRows<T> a) {
  auto* queries = shared_memory<float>();
  auto* others = queries + S::token_words;  // keys, then values
  auto* weights = others + S::token_words;
  const int batch = block_z(), head = block_y();
  const int q0 = (grid_x() - 1 - block_x()) * S::tile;
  const int count = a.sequence - q0 < S::tile ? a.sequence - q0 : S::tile;
  const auto token = a.first_token(batch);
  const int kv_col = head / a.group() * a.head_dim;
  load_tokens<S>(queries, a.q, token + q0, head * a.head_dim, count, a.head_dim);
  State<S> state;
  LLAMESH_UNROLL
  for (int i = 0; i < S::rows_each; ++i) {
    const int r = my_y() + side * i;
    state.most[i] = no_score;
    state.first[i] = r < count ? a.first_key(batch, q0 + r) : 0;
  }
  for (int k0 = a.first_key(batch, q0) / S::tile * S::tile; k0 < q0 + count; k0 += S::tile) {
    const int keys = a.sequence - k0 < S::tile ? a.sequence - k0 : S::tile;
    sync_threads();  // the values and weights of the tile before have been used
    load_tokens<S>(others, a.k, token + k0, kv_col, keys, a.head_dim);
    sync_threads();
    float scores[S::rows_each][S::rows_each] = {};
    add_scores<S>(scores, queries, others, a.head_dim);
    state.soften(scores, a.scale, q0, k0);
    store_scores<S>(weights, scores);
    sync_threads();
    load_tokens<S>(others, a.v, token + k0, kv_col, keys, a.head_dim);
    sync_threads();
    add_mixed<S, false>(state.sums, weights, others);
  }
  LLAMESH_UNROLL
  for (int i = 0; i < S::rows_each; ++i) {
    const int r = my_y() + side * i;
    LLAMESH_UNROLL
    for (int j = 0; j < S::dims_each; ++j) state.sums[i][j] /= state.total[i];
    if (my_x() == 0 && r < count)
      a.log_sum_exp[a.statistics(batch, head) + q0 + r] = state.most[i] + log_of(state.total[i]);
  }
  store_tokens<S>(a.out, token + q0, head * a.head_dim, count, a.head_dim, state.sums, 1.0F);
}

}  // namespace

void plain_attention(Stream& stream, const AttentionCall& call) {
  const auto& s = call.shape;
  with_type(call.q.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int tokens = 2;  // tiles of them
    with_sizes(s.head_dim, tokens, [&]<class S>(S) {
      launch(&forward<S, T>, {divide_up(s.sequence, S::tile), s.heads, s.batch}, threads,
             shared_bytes<S>(tokens), stream, attention_rows<T>(call));
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
