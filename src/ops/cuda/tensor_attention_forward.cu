#include "ops/cuda/reduce.cuh"
#include "ops/cuda/tensor_attention.cuh"

// FlashAttention-2 (Dao 2023) on mma.sync. Bound by arithmetic: 2 T^2 E H B multiply-adds with the
// causal half left out. A warp has 32 queries, so that a right factor from shared memory serves two
// products: 160 bytes of shared memory an instruction on average, which two blocks a multiprocessor
// can have. Values arrive while scores are computed, the next keys while values are mixed.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace tensor;

constexpr int warps = 4;
constexpr int threads = 32 * warps;
constexpr int halves = 2;                     // of 16 queries, each warp
constexpr int queries = warps * halves * 16;  // a block
constexpr int keys = 64;                      // at a time
constexpr int key_tiles = keys / 8;

template <int dims>
constexpr std::int64_t shared_bytes() {
  return (queries + 2 * keys) * dims * 2;
}

/// What a warp knows of its queries so far.
template <int dims>
struct State {
  float sums[halves][dims / 8][4] = {};
  float most[halves][2] = {{no_score, no_score}, {no_score, no_score}};  // row my_row(), and + 8
  float total[halves][2] = {};                                           // of this lane's columns
};

using Scores = float[halves][key_tiles][4];

/// Takes away the scores of keys after the query or before its document. `query` is the warp's
/// first, `key` the tile's.
__device__ __forceinline__ void hide(Scores& s, const AttentionRows<bf16>& a, int batch, int query,
                                     int key) {
  const int lane = thread_anew() % 32;
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) {
    LLAMESH_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int q = query + 16 * h + 8 * r + lane / 4;
      const int first = a.first_key(batch, q < a.sequence ? q : a.sequence - 1);
      LLAMESH_UNROLL
      for (int n = 0; n < key_tiles; ++n) {
        LLAMESH_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int k = key + 8 * n + lane % 4 * 2 + i;
          if (k > q || k < first) s[h][n][2 * r + i] = 2.0F * no_score;
        }
      }
    }
  }
}

using Weights = std::uint32_t[halves][keys / 16][4];

/// weights = exp(score - most so far), and what was summed is scaled to that. `factor` is log2(e) /
/// sqrt(E). The scores are used up.
template <int dims>
__device__ __forceinline__ void soften(Weights& weights, Scores& s, State<dims>& state,
                                       float factor) {
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) {
    LLAMESH_UNROLL
    for (int r = 0; r < 2; ++r) {
      float higher = state.most[h][r];
      LLAMESH_UNROLL
      for (int n = 0; n < key_tiles; ++n)
        higher = most_of(higher, most_of(s[h][n][2 * r], s[h][n][2 * r + 1]));
      higher = most_of(higher, shuffle_xor(higher, 1));
      higher = most_of(higher, shuffle_xor(higher, 2));
      const float kept = exp2_fast((state.most[h][r] - higher) * factor);
      state.most[h][r] = higher;
      const float offset = higher * factor;
      float sum = 0;
      LLAMESH_UNROLL
      for (int n = 0; n < key_tiles; ++n) {
        LLAMESH_UNROLL
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[h][n][i] = exp2_fast(s[h][n][i] * factor - offset);
          sum += s[h][n][i];
        }
      }
      state.total[h][r] = state.total[h][r] * kept + sum;
      LLAMESH_UNROLL
      for (int n = 0; n < dims / 8; ++n) {
        state.sums[h][n][2 * r] *= kept;
        state.sums[h][n][2 * r + 1] *= kept;
      }
    }
    left_of_sums(weights[h], s[h]);
  }
}

/// Divides by the total weights, and writes 32 rows of `out` by way of `staging`, whose rows from
/// `row` on are the warp's own.
template <int dims>
__device__ __forceinline__ void finish(State<dims>& state, const AttentionRows<bf16>& a,
                                       const Tile<dims>& staging, int batch, int head, int q0,
                                       int row, int count) {
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) {
    LLAMESH_UNROLL
    for (int r = 0; r < 2; ++r) {
      float total = state.total[h][r];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      const float inverse = 1.0F / total;
      LLAMESH_UNROLL
      for (int n = 0; n < dims / 8; ++n) {
        state.sums[h][n][2 * r] *= inverse;
        state.sums[h][n][2 * r + 1] *= inverse;
      }
      const int i = row + 16 * h + 8 * r + my_row();
      if (my_col() == 0 && i < count)
        a.log_sum_exp[a.statistics(batch, head) + q0 + i] =
            state.most[h][r] * a.scale + log_of(total);
    }
    staging.put(row + 16 * h, state.sums[h], 1.0F);
  }
  sync_warp();
  staging.template write<16 * halves>(a.out, a.first_token(batch) + q0, head * dims, row, count);
}

/// 128 queries of one head a block. The heads of one token lie next to each other in the grid, so
/// that those which share keys find them in the L2 cache; the longest rows come first.
template <int dims>
__global__ void __launch_bounds__(threads, 2) forward(AttentionRows<bf16> a) {
  const Tile<dims> q{shared_address(shared_memory<unsigned char>())};
  const Tile<dims> k{q.base + queries * dims * 2}, v{k.base + keys * dims * 2};
  const int head = block_x(), batch = block_z();
  const int q0 = (grid_y() - 1 - block_y()) * queries;
  const int count = a.sequence - q0 < queries ? a.sequence - q0 : queries;
  const auto token = a.first_token(batch);
  const int kv_col = head / a.group() * dims;
  int k0 = a.first_key(batch, q0) / keys * keys;
  q.template copy<queries, threads>(a.q, token + q0, head * dims, count);
  k.template copy<keys, threads>(a.k, token + k0, kv_col, a.sequence - k0);
  copy_async_commit();
  State<dims> state;
  for (; k0 < q0 + count; k0 += keys) {
    copy_async_wait<0>();
    sync_threads();  // the keys are there, and the values before have been used
    v.template copy<keys, threads>(a.v, token + k0, kv_col, a.sequence - k0);
    copy_async_commit();
    Scores s;
    const int row = thread_anew() / 32 * halves * 16;
    score(s, q, row, k);
    if (k0 + keys - 1 > q0 + row || (a.document_starts && k0 < a.first_key(batch, q0 + count - 1)))
      hide(s, a, batch, q0 + row, k0);
    Weights weights;
    soften(weights, s, state, a.scale * log2_e);
    copy_async_wait<0>();
    sync_threads();  // the values are there, and the keys have been used
    const int next = k0 + keys;
    if (next < q0 + count)
      k.template copy<keys, threads>(a.k, token + next, kv_col, a.sequence - next);
    copy_async_commit();
    mix(state.sums, weights, v);
  }
  finish(state, a, q, batch, head, q0, my_warp() * halves * 16, count);
}

template <int dims>
void launch_forward(Stream& stream, const AttentionCall& call) {
  const auto& s = call.shape;
  launch(&forward<dims>, {s.heads, divide_up(s.sequence, queries), s.batch}, threads,
         shared_bytes<dims>(), stream, attention_rows<bf16>(call));
}

}  // namespace

bool tensor_cores_can(const AttentionCall& call) {
  const auto e = call.shape.head_dim;
  return call.q.dtype() == DType::bf16 && (e == 64 || e == 128) &&
         aligned(call.q, call.k, call.v, call.out, call.dq, call.dk, call.dv, call.dout);
}

void tensor_attention(Stream& stream, const AttentionCall& call) {
  call.shape.head_dim == 64 ? launch_forward<64>(stream, call) : launch_forward<128>(stream, call);
}

}  // namespace LLAMESH_OPS_CUDA
