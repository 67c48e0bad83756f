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
  float sums[halves][dims / 8][4];
  float most[halves][2], total[halves][2];  // rows my_row() and my_row() + 8
  int first[halves][2];                     // the first key that each sees

  __device__ __forceinline__ void start(const AttentionRows<bf16>& a, int batch, int query) {
    LLAMESH_UNROLL
    for (int h = 0; h < halves; ++h) {
      LLAMESH_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int i = query + 16 * h + 8 * r + my_row();
        most[h][r] = no_score;
        total[h][r] = 0;
        first[h][r] = a.first_key(batch, i < a.sequence ? i : a.sequence - 1);
      }
      LLAMESH_UNROLL
      for (int n = 0; n < dims / 8; ++n) {
        LLAMESH_UNROLL
        for (int i = 0; i < 4; ++i) sums[h][n][i] = 0;
      }
    }
  }
};

using Scores = float[halves][key_tiles][4];

/// The scores of 32 queries from row `row` of `q` on, with all keys of `k`.
template <int dims>
__device__ __forceinline__ void all_scores(Scores& s, const Tile<dims>& q, int row,
                                           const Tile<dims>& k) {
  LLAMESH_UNROLL
  for (int n = 0; n < key_tiles; ++n) {
    LLAMESH_UNROLL
    for (int i = 0; i < 4; ++i) s[0][n][i] = s[1][n][i] = 0;
  }
  LLAMESH_UNROLL
  for (int e = 0; e < dims / 16; ++e) {
    std::uint32_t x[halves][4];
    q.left(x[0], row, e);
    q.left(x[1], row + 16, e);
    LLAMESH_UNROLL
    for (int n = 0; n < key_tiles / 2; ++n) {
      std::uint32_t y[4];
      k.right(y, 16 * n, e);
      LLAMESH_UNROLL
      for (int h = 0; h < halves; ++h) {
        multiply(s[h][2 * n], x[h], y[0], y[1]);
        multiply(s[h][2 * n + 1], x[h], y[2], y[3]);
      }
    }
  }
}

/// Takes away the scores of keys after the query or before its document. `query` is the warp's
/// first, `key` the tile's.
template <int dims>
__device__ __forceinline__ void hide(Scores& s, const State<dims>& state, int query, int key) {
  LLAMESH_UNROLL
  for (int h = 0; h < halves; ++h) {
    LLAMESH_UNROLL
    for (int n = 0; n < key_tiles; ++n) {
      LLAMESH_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int q = query + 16 * h + i / 2 * 8 + my_row();
        const int k = key + 8 * n + my_col() + i % 2;
        if (k > q || k < state.first[h][i / 2]) s[h][n][i] = 2.0F * no_score;
      }
    }
  }
}

/// Scores become exp(score - most so far), and what was summed is scaled to that. `factor` is
/// log2(e) / sqrt(E).
template <int dims>
__device__ __forceinline__ void soften(Scores& s, State<dims>& state, float factor) {
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
      state.total[h][r] = state.total[h][r] * kept + sum;  // of this lane's columns
      LLAMESH_UNROLL
      for (int n = 0; n < dims / 8; ++n) {
        state.sums[h][n][2 * r] *= kept;
        state.sums[h][n][2 * r + 1] *= kept;
      }
    }
  }
}

/// state.sums += weights times the values.
template <int dims>
__device__ __forceinline__ void mix_values(State<dims>& state, const Scores& s,
                                           const Tile<dims>& v) {
  LLAMESH_UNROLL
  for (int k = 0; k < keys / 16; ++k) {
    std::uint32_t x[halves][4];
    left_of_sums(x[0], s[0], k);
    left_of_sums(x[1], s[1], k);
    LLAMESH_UNROLL
    for (int n = 0; n < dims / 16; ++n) {
      std::uint32_t y[4];
      v.right_by_rows(y, 16 * k, n);
      LLAMESH_UNROLL
      for (int h = 0; h < halves; ++h) {
        multiply(state.sums[h][2 * n], x[h], y[0], y[1]);
        multiply(state.sums[h][2 * n + 1], x[h], y[2], y[3]);
      }
    }
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
  const int row = my_warp() * halves * 16;
  const float factor = a.scale * log2_e;
  const int last_row = q0 + row + halves * 16 - 1;
  const int hidden_to =
      a.document_starts ? a.first_key(batch, last_row < a.sequence ? last_row : a.sequence - 1) : 0;

  int k0 = a.first_key(batch, q0) / keys * keys;
  q.template copy<queries, threads>(a.q, token + q0, head * dims, count);
  k.template copy<keys, threads>(a.k, token + k0, kv_col, a.sequence - k0);
  copy_async_commit();
  State<dims> state;
  state.start(a, batch, q0 + row);
  for (; k0 < q0 + count; k0 += keys) {
    copy_async_wait<0>();
    sync_threads();  // the keys are there, and the values before have been used
    v.template copy<keys, threads>(a.v, token + k0, kv_col, a.sequence - k0);
    copy_async_commit();
    Scores s;
    all_scores(s, q, row, k);
    if (k0 + keys - 1 > q0 + row || k0 < hidden_to) hide(s, state, q0 + row, k0);
    soften(s, state, factor);
    copy_async_wait<0>();
    sync_threads();  // the values are there, and the keys have been used
    const int next = k0 + keys;
    if (next < q0 + count)
      k.template copy<keys, threads>(a.k, token + next, kv_col, a.sequence - next);
    copy_async_commit();
    mix_values(state, s, v);
  }
  finish(state, a, q, batch, head, q0, row, count);
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
