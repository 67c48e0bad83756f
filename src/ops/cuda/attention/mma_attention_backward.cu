#include "ops/cuda/attention/mma_matmuls.cuh"
#include "ops/cuda/attention/softmax_backward.cuh"

// Compute-bound: 7 products with T^2 E / 2 multiply-adds per head, or T^2 V / 2 where values are a
// factor. That is two more than the minimum, because P and dS are computed once for dq and once for
// dk and dv. In return one thread sums each element in a fixed order, without atomics. A warp has
// 16 result rows and reads 270 to 310 bytes of shared memory per instruction, which limits it to
// about half the tensor-core peak.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace tensor_core;

constexpr int others = passing;  // streamed tokens per iteration

constexpr int warps = 8;

/// Sizes for a block.
template <int dims_, int value_dims_>
struct Sizes {
  static constexpr int dims = dims_, value_dims = value_dims_;
  static constexpr int threads = 32 * warps;
  static constexpr int own = 16 * warps;  // tokens whose gradient a block computes
  using OwnTile = Tile<dims, own>;
  using OwnValueTile = Tile<value_dims, own>;
  using Pair = TilePair<dims, value_dims, others>;
  static constexpr std::int64_t query_bytes =
      OwnTile::bytes + OwnValueTile::bytes + 2 * Pair::bytes;
  static constexpr std::int64_t key_bytes = query_bytes + 2 * sizeof(QueryColumns);
};

// --- dq: a warp has 16 queries, keys are streamed ---

/// Computes dq for a tile of queries in one head per block.
template <class S, bool caps>
__global__ void __launch_bounds__(S::threads, 1) backward_queries(AttentionRows<bf16> a) {
  constexpr int dims = S::dims, value_dims = S::value_dims, own = S::own, threads = S::threads;
  using Pair = typename S::Pair;
  const typename S::OwnTile q{shared_address(dynamic_shared_memory<unsigned char>())};
  const typename S::OwnValueTile dout{q.base + q.bytes};
  const SharedAddress stages = dout.base + dout.bytes;
  const int head = blockIdx.x, batch = blockIdx.z;
  const auto block = a.runs.block(gridDim.y - 1 - blockIdx.y, own);
  const auto token = a.first_token(batch) + block.first, key = a.first_key_token(batch);
  const int kv_head = head / a.group(), kv_col = kv_head * dims, value_col = kv_head * value_dims;
  const int row = my_warp() * 16;
  const QueryRows rows(a, batch, head, block, row);

  int k0 = a.first_key(batch, block.first) / others * others;
  q.template copy<threads>(a.q, token, head * dims, block.count);
  dout.template copy<threads>(a.dout, token, head * value_dims, block.count);
  Pair(stages, 0).template copy<threads>(a.k, a.v, key + k0, kv_col, value_col, a.keys - k0);
  cp_async_commit_group();
  float dq[1][dims / 8][4] = {};
  for (int stage = 0; k0 < block.end(); k0 += others, stage ^= 1) {
    cp_async_wait_group<0>();
    __syncthreads();  // this tile is loaded, the previous one consumed
    const int next = k0 + others;
    if (next < block.end())
      Pair(stages, stage ^ 1)
          .template copy<threads>(a.k, a.v, key + next, kv_col, value_col, a.keys - next);
    cp_async_commit_group();
    if (k0 > block.position + row + 15) continue;  // all keys after the warp's queries
    const auto [k, v] = Pair(stages, stage);
    float s[1][others / 8][4], dp[1][others / 8][4];
    mma_qk(s, q, row, k);
    mma_qk(dp, dout, row, v);
    if constexpr (caps) cap(s, a);
    recompute_p(s, s, rows, a.scale * log2_e);
    if (a.hides_earlier_keys() || k0 + others - 1 > block.position + row)
      mask_p(s, rows, block.position + row, k0);
    if constexpr (caps) times_cap_slope(s, rows, a.softcap);
    compute_ds(s, dp, rows);
    std::uint32_t left[1][others / 16][4];
    as_a_operand(left[0], s[0]);
    mma_pv(dq, left, k);
  }
  rope_backward(dq[0], a, batch, block.first + row);
  q.put(row, dq[0], a.scale);
  __syncwarp();
  q.template write<16>(a.dq, token, head * dims, row, block.count);
}

// --- dk and dv: a warp has 16 keys, queries are streamed for all heads that share them ---

/// Queries per warp and iteration, limited by the registers that dk and dv leave.
template <int dims>
inline constexpr int part = dims == 64 ? 64 : 32;

/// Gradients for a warp's 16 keys.
template <int dims, int value_dims>
struct KeySums {
  float dk[1][dims / 8][4] = {}, dv[1][value_dims / 8][4] = {};

  /// Adds a query tile's contribution. `key` is the warp's first key, `query` the position
  /// of the tile's first query.
  template <bool caps, int own>
  __device__ __forceinline__ void add(const AttentionRows<bf16>& a, const Tile<dims, own>& k,
                                      const Tile<value_dims, own>& v, int row,
                                      const TilePair<dims, value_dims, others>& queries,
                                      const QueryColumns& columns, int query, int key) {
#pragma unroll 1
    for (int first = 0; first < others; first += part<dims>) {
      if (query + first + part<dims> <= key) continue;  // all queries before the warp's keys
      const auto down = Tile<dims, others>::down(first);
      const Tile<dims, others> q{queries.first.base + down};
      const Tile<value_dims, others> dout{queries.second.base + down};
      float s[1][part<dims> / 8][4], dp[1][part<dims> / 8][4];
      std::uint32_t left[1][part<dims> / 16][4];
      mma_qk(s, k, row, q);
      if constexpr (caps) cap(s, a);
      recompute_p(s, s, columns, first, a.scale * log2_e);
      if (a.hides_earlier_keys() || query + first < key + 15)
        mask_p(s, columns, first, query + first, key);
      as_a_operand(left[0], s[0]);
      mma_pv(dv, left, dout);
      mma_qk(dp, v, row, dout);
      if constexpr (caps) times_cap_slope(s, columns, first, a.softcap);
      compute_ds(s, dp, columns, first);
      as_a_operand(left[0], s[0]);
      mma_pv(dk, left, q);
    }
  }
};

/// Computes dk and dv for a tile of keys in one key-value head per block.
template <class S, bool caps>
__global__ void __launch_bounds__(S::threads, 1) backward_keys(AttentionRows<bf16> a) {
  constexpr int dims = S::dims, value_dims = S::value_dims, own = S::own, threads = S::threads;
  using Pair = typename S::Pair;
  auto* shared = dynamic_shared_memory<unsigned char>();
  const typename S::OwnTile k{shared_address(shared)};
  const typename S::OwnValueTile v{k.base + k.bytes};
  const SharedAddress stages = v.base + v.bytes;
  auto* columns = reinterpret_cast<QueryColumns*>(shared + S::query_bytes);
  const int kv_head = blockIdx.x, k0 = blockIdx.y * own, batch = blockIdx.z;
  const int count = a.keys - k0 < own ? a.keys - k0 : own;
  const auto token = a.first_key_token(batch) + k0;
  const VisibleQueryTiles meet(a, batch, k0, own);
  const auto start = [&](int m) {
    const int head = meet.head(kv_head, a.group(), m);
    const auto block = meet.queries(m);
    Pair(stages, m % 2)
        .template copy<threads>(a.q, a.dout, a.first_token(batch) + block.first, head * dims,
                                head * value_dims, block.count);
  };
  const auto statistics_of = [&](int m) {
    return PassingStatistics<threads>(a, batch, meet.head(kv_head, a.group(), m), meet.queries(m));
  };

  if (meet.all > 0) {
    k.template copy<threads>(a.k, token, kv_head * dims, count);
    v.template copy<threads>(a.v, token, kv_head * value_dims, count);
    start(0);
    cp_async_commit_group();
    statistics_of(0).store(columns);
  }
  KeySums<dims, value_dims> sums;
  const int row = my_warp() * 16;
  for (int m = 0; m < meet.all; ++m) {
    cp_async_wait_group<0>();
    __syncthreads();  // this tile is loaded, the previous one consumed
    const int next = m + 1 < meet.all ? m + 1 : m;
    const auto statistics = statistics_of(next);
    if (next > m) start(next);
    cp_async_commit_group();
    sums.template add<caps>(a, k, v, row, Pair(stages, m % 2), columns[m % 2],
                            meet.queries(m).position, k0 + row);
    statistics.store(columns + (m + 1) % 2);
  }
  rope_backward(sums.dk[0], a, batch, k0 + row);
  k.put(row, sums.dk[0], a.scale);
  v.put(row, sums.dv[0], 1.0F);
  __syncwarp();
  k.template write<16>(a.dk, token, kv_head * dims, row, count);
  v.template write<16>(a.dv, token, kv_head * value_dims, row, count);
}

/// Returns body(std::type_identity<S>) with the sizes for heads that can_use_mma() lets pass.
template <class Body>
auto with_sizes(std::int64_t head_dim, const Body& body) {
  switch (head_dim) {
    case 64:
      return body(std::type_identity<Sizes<64, 64>>{});
    case 128:
      return body(std::type_identity<Sizes<128, 128>>{});
    default:
      return body(std::type_identity<Sizes<192, 128>>{});
  }
}

template <class S, bool caps>
void launch_backward(Stream& stream, const AttentionCall& call,
                     const AttentionGradients& gradients) {
  const auto& s = call.shape;
  const auto rows = attention_rows<bf16>(call, gradients);
  launch(&backward_queries<S, caps>, {s.heads, rows.runs.blocks(S::own), s.batch}, S::threads,
         S::query_bytes, stream, rows);
  launch(&backward_keys<S, caps>, {s.kv_heads, divide_up(s.keys, S::own), s.batch}, S::threads,
         S::key_bytes, stream, rows);
}

}  // namespace

bool mma_attention_backward_fits(std::int64_t head_dim) {
  return with_sizes(head_dim, []<class S>(std::type_identity<S>) { return S::key_bytes; }) <=
         shared_bytes_a_block();
}

void mma_attention_backward(Stream& stream, const AttentionCall& call,
                            const AttentionGradients& gradients) {
  with_sizes(call.shape.head_dim, [&]<class S>(std::type_identity<S>) {
    call.shape.softcap > 0 ? launch_backward<S, true>(stream, call, gradients)
                           : launch_backward<S, false>(stream, call, gradients);
  });
}

}  // namespace LLAMESH_OPS_CUDA
