#include "ops/cuda/tensor_attention.cuh"

// Bound by arithmetic: 7 products of T^2 E / 2 multiply-adds a head, two more than the least, since
// scores and slopes are computed once for dq and once for dk and dv: so every number is summed by
// one thread in one order, and no atomic is needed. A warp has 16 rows of the result and reads 270
// to 310 bytes of shared memory an instruction, which holds it to about half of what the tensor
// cores can.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace tensor;

constexpr int warps = 8;
constexpr int threads = 32 * warps;
constexpr int own = 16 * warps;  // tokens whose gradient a block computes
constexpr int others = 64;       // tokens of the other kind at a time
constexpr int other_tiles = others / 8;

using Scores = float[1][other_tiles][4];
using Left = std::uint32_t[1][others / 16][4];

// --- dq: a warp has 16 queries, keys pass by ---

template <int dims>
constexpr std::int64_t shared_bytes_of_queries() {
  return (2 * own + 4 * others) * dims * 2;
}

/// The statistics of the two rows of a lane.
struct QueryRows {
  float log_sum_exp[2], delta[2];
  int first[2];

  __device__ __forceinline__ QueryRows(const AttentionRows<bf16>& a, int batch, int head,
                                       int query) {
    LLAMESH_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int wanted = query + my_row() + 8 * r;
      const int i = wanted < a.sequence ? wanted : a.sequence - 1;
      const auto at = a.statistics(batch, head) + i;
      log_sum_exp[r] = a.log_sum_exp[at] * log2_e;
      delta[r] = a.delta[at];
      first[r] = a.first_key(batch, i);
    }
  }
};

/// scores become slopes: weights * (dweights - delta), 0 where the query does not see the key.
__device__ __forceinline__ void slopes_of_rows(Scores& s, const Scores& dweights,
                                               const QueryRows& rows, float factor, int query,
                                               int key) {
  LLAMESH_UNROLL
  for (int n = 0; n < other_tiles; ++n) {
    LLAMESH_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i / 2;
      const int q = query + my_row() + 8 * r, k = key + 8 * n + my_col() + i % 2;
      const float weight = exp2_fast(s[0][n][i] * factor - rows.log_sum_exp[r]);
      s[0][n][i] =
          k <= q && k >= rows.first[r] ? weight * (dweights[0][n][i] - rows.delta[r]) : 0.0F;
    }
  }
}

/// dq of 128 queries of one head a block.
template <int dims>
__global__ void __launch_bounds__(threads, 1) backward_queries(AttentionRows<bf16> a) {
  const Tile<dims> q{shared_address(shared_memory<unsigned char>())};
  const Tile<dims> dout{q.base + own * dims * 2};
  const SharedAddress stages = dout.base + own * dims * 2;
  constexpr SharedAddress tile_bytes = others * dims * 2;
  const int head = block_x(), batch = block_z();
  const int q0 = (grid_y() - 1 - block_y()) * own;
  const int count = a.sequence - q0 < own ? a.sequence - q0 : own;
  const auto token = a.first_token(batch);
  const int kv_col = head / a.group() * dims;
  const int row = my_warp() * 16;
  const QueryRows rows(a, batch, head, q0 + row);

  int k0 = a.first_key(batch, q0) / others * others;
  q.template copy<own, threads>(a.q, token + q0, head * dims, count);
  dout.template copy<own, threads>(a.dout, token + q0, head * dims, count);
  Tile<dims>{stages}.template copy<others, threads>(a.k, token + k0, kv_col, a.sequence - k0);
  Tile<dims>{stages + tile_bytes}.template copy<others, threads>(a.v, token + k0, kv_col,
                                                                 a.sequence - k0);
  copy_async_commit();
  float dq[1][dims / 8][4] = {};
  for (int stage = 0; k0 < q0 + count; k0 += others, stage ^= 1) {
    copy_async_wait<0>();
    sync_threads();  // this tile is there, and the one before has been used
    const Tile<dims> k{stages + static_cast<SharedAddress>(stage) * 2 * tile_bytes};
    const Tile<dims> v{k.base + tile_bytes};
    const int next = k0 + others;
    if (next < q0 + count) {
      const SharedAddress to = stages + static_cast<SharedAddress>(stage ^ 1) * 2 * tile_bytes;
      Tile<dims>{to}.template copy<others, threads>(a.k, token + next, kv_col, a.sequence - next);
      Tile<dims>{to + tile_bytes}.template copy<others, threads>(a.v, token + next, kv_col,
                                                                 a.sequence - next);
    }
    copy_async_commit();
    if (k0 > q0 + row + 15) continue;  // all of them after the warp's queries
    Scores s, dweights;
    score(s, q, row, k);
    score(dweights, dout, row, v);
    slopes_of_rows(s, dweights, rows, a.scale * log2_e, q0 + row, k0);
    Left left;
    left_of_sums(left[0], s[0]);
    mix(dq, left, k);
  }
  q.put(row, dq[0], a.scale);
  sync_warp();
  q.template write<16>(a.dq, token + q0, head * dims, row, count);
}

// --- dk and dv: a warp has 16 keys, the queries of all heads that share them pass by ---

/// The statistics of a tile of queries.
struct QueryColumns {
  float log_sum_exp[others], delta[others];
  std::int32_t first[others];
};

template <int dims>
constexpr std::int64_t shared_bytes_of_keys() {
  return (2 * own + 4 * others) * dims * 2 + 2 * static_cast<std::int64_t>(sizeof(QueryColumns));
}

/// Which tiles of queries a block of keys meets: the same ones of each head.
struct Meetings {
  int first_tile, tiles, all;

  /// Documents lie one after another, so the queries that see a key are neighbours: the last tile
  /// of them is found by halving.
  __device__ __forceinline__ Meetings(const AttentionRows<bf16>& a, int batch, int k0)
      : first_tile(k0 / others) {
    int last = (a.sequence - 1) / others;
    for (int low = first_tile; a.document_starts && low < last;) {
      const int middle = (low + last + 1) / 2;
      if (a.first_key(batch, middle * others) < k0 + own)
        low = middle;
      else
        last = middle - 1;
    }
    tiles = last - first_tile + 1;
    all = tiles * a.group();
  }
  __device__ __forceinline__ int query(int i) const { return (first_tile + i % tiles) * others; }
  __device__ __forceinline__ int head(int kv_head, int group, int i) const {
    return kv_head * group + i / tiles;
  }
};

/// One of the statistics of a query, of which each of the first 192 threads loads one.
__device__ __forceinline__ std::uint32_t load_statistic(const AttentionRows<bf16>& a, int batch,
                                                        int head, int q0) {
  const int wanted = q0 + thread_x() % others;
  const int i = wanted < a.sequence ? wanted : a.sequence - 1;
  const auto at = a.statistics(batch, head) + i;
  if (thread_x() < others) return bits_of(a.log_sum_exp[at] * log2_e);
  if (thread_x() < 2 * others) return bits_of(a.delta[at]);
  return static_cast<std::uint32_t>(a.first_key(batch, i));
}
__device__ __forceinline__ void store_statistic(QueryColumns* to, std::uint32_t word) {
  if (thread_x() < 3 * others) reinterpret_cast<std::uint32_t*>(to)[thread_x()] = word;
}

/// Queries that a warp computes with at a time: as many as leave it registers for dk and dv.
template <int dims>
inline constexpr int part = dims == 64 ? 64 : 32;

/// scores become weights. Rows are keys, columns queries from `query` on, `first` of the tile.
template <int n_tiles>
__device__ __forceinline__ void weights_of_columns(float (&s)[1][n_tiles][4],
                                                   const QueryColumns& columns, int first,
                                                   float factor, int query, int key) {
  LLAMESH_UNROLL
  for (int n = 0; n < n_tiles; ++n) {
    LLAMESH_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int col = 8 * n + my_col() + i % 2;
      const int k = key + my_row() + i / 2 * 8;
      const float weight = exp2_fast(s[0][n][i] * factor - columns.log_sum_exp[first + col]);
      s[0][n][i] = k <= query + col && k >= columns.first[first + col] ? weight : 0.0F;
    }
  }
}

/// weights become slopes.
template <int n_tiles>
__device__ __forceinline__ void slopes_of_columns(float (&s)[1][n_tiles][4],
                                                  const float (&dweights)[1][n_tiles][4],
                                                  const QueryColumns& columns, int first) {
  LLAMESH_UNROLL
  for (int n = 0; n < n_tiles; ++n) {
    LLAMESH_UNROLL
    for (int i = 0; i < 4; ++i)
      s[0][n][i] *= dweights[0][n][i] - columns.delta[first + 8 * n + my_col() + i % 2];
  }
}

/// The gradients of a warp's 16 keys.
template <int dims>
struct KeySums {
  float dk[1][dims / 8][4] = {}, dv[1][dims / 8][4] = {};

  /// Adds what a tile of queries gives. `key` is the warp's first, `query` the tile's.
  __device__ __forceinline__ void add(const Tile<dims>& k, const Tile<dims>& v, int row,
                                      const Tile<dims>& q, const Tile<dims>& dout,
                                      const QueryColumns& columns, float factor, int query,
                                      int key) {
    LLAMESH_NO_UNROLL
    for (int first = 0; first < others; first += part<dims>) {
      if (query + first + part<dims> <= key) continue;  // all of them before the warp's keys
      const Tile<dims> some_q{q.base + q.down(first)}, some_dout{dout.base + q.down(first)};
      float s[1][part<dims> / 8][4], dweights[1][part<dims> / 8][4];
      std::uint32_t left[1][part<dims> / 16][4];
      score(s, k, row, some_q);
      weights_of_columns(s, columns, first, factor, query + first, key);
      left_of_sums(left[0], s[0]);
      mix(dv, left, some_dout);
      score(dweights, v, row, some_dout);
      slopes_of_columns(s, dweights, columns, first);
      left_of_sums(left[0], s[0]);
      mix(dk, left, some_q);
    }
  }
};

/// Starts to copy a tile of queries and their slopes.
template <int dims>
__device__ __forceinline__ void copy_queries(SharedAddress to, const AttentionRows<bf16>& a,
                                             std::int64_t token, int head, int q0) {
  const int count = a.sequence - q0;
  Tile<dims>{to}.template copy<others, threads>(a.q, token + q0, head * dims, count);
  Tile<dims>{to + others * dims * 2}.template copy<others, threads>(a.dout, token + q0, head * dims,
                                                                    count);
}

/// dk and dv of 128 keys of one key-value head a block.
template <int dims>
__global__ void __launch_bounds__(threads, 1) backward_keys(AttentionRows<bf16> a) {
  auto* shared = shared_memory<unsigned char>();
  const Tile<dims> k{shared_address(shared)}, v{k.base + own * dims * 2};
  constexpr SharedAddress stage_bytes = 2 * others * dims * 2;
  const SharedAddress stages = v.base + own * dims * 2;
  auto* columns = reinterpret_cast<QueryColumns*>(shared + (2 * own + 4 * others) * dims * 2);
  const int kv_head = block_x(), k0 = block_y() * own, batch = block_z();
  const int count = a.sequence - k0 < own ? a.sequence - k0 : own;
  const auto token = a.first_token(batch);
  const Meetings meet(a, batch, k0);

  k.template copy<own, threads>(a.k, token + k0, kv_head * dims, count);
  v.template copy<own, threads>(a.v, token + k0, kv_head * dims, count);
  copy_queries<dims>(stages, a, token, meet.head(kv_head, a.group(), 0), meet.query(0));
  copy_async_commit();
  store_statistic(columns,
                  load_statistic(a, batch, meet.head(kv_head, a.group(), 0), meet.query(0)));
  KeySums<dims> sums;
  const int row = my_warp() * 16;
  for (int m = 0; m < meet.all; ++m) {
    copy_async_wait<0>();
    sync_threads();  // this tile is there, and the one before has been used
    const int stage = m % 2;
    const int next = m + 1 < meet.all ? m + 1 : m;
    const int next_head = meet.head(kv_head, a.group(), next);
    const auto statistic = load_statistic(a, batch, next_head, meet.query(next));
    if (next > m)
      copy_queries<dims>(stages + static_cast<SharedAddress>(stage ^ 1) * stage_bytes, a, token,
                         next_head, meet.query(next));
    copy_async_commit();
    const Tile<dims> q{stages + static_cast<SharedAddress>(stage) * stage_bytes};
    const Tile<dims> dout{q.base + others * dims * 2};
    sums.add(k, v, row, q, dout, columns[stage], a.scale * log2_e, meet.query(m), k0 + row);
    store_statistic(columns + (stage ^ 1), statistic);
  }
  k.put(row, sums.dk[0], a.scale);
  v.put(row, sums.dv[0], 1.0F);
  sync_warp();
  k.template write<16>(a.dk, token + k0, kv_head * dims, row, count);
  v.template write<16>(a.dv, token + k0, kv_head * dims, row, count);
}

template <int dims>
void launch_backward(Stream& stream, const AttentionCall& call) {
  const auto& s = call.shape;
  const auto rows = attention_rows<bf16>(call);
  const auto blocks = divide_up(s.sequence, own);
  launch(&backward_queries<dims>, {s.heads, blocks, s.batch}, threads,
         shared_bytes_of_queries<dims>(), stream, rows);
  launch(&backward_keys<dims>, {s.kv_heads, blocks, s.batch}, threads, shared_bytes_of_keys<dims>(),
         stream, rows);
}

}  // namespace

void tensor_attention_backward(Stream& stream, const AttentionCall& call) {
  call.shape.head_dim == 64 ? launch_backward<64>(stream, call)
                            : launch_backward<128>(stream, call);
}

}  // namespace LLAMESH_OPS_CUDA
