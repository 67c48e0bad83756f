#include "ops/cuda/attention/softmax_backward.cuh"
#include "ops/cuda/attention/wgmma_matmuls.cuh"

// Compute-bound: the same 7 products as in the mma backward kernels, also without atomics. Two
// warpgroups have 64 result rows each. While they compute P and dS for a tile, the tensor cores run
// the previous tile's last product (dQ or dK) and the next tile's S.
//
// ptxas serializes all products if one is conditional, or in flight when the next iteration issues
// its own. So each iteration ends with a wait, the first adds zeros, and the last computes an S
// that nothing reads.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace tensor_core;

constexpr int threads = 256;
constexpr int own = 128;       // tokens whose gradient a block computes
constexpr int keys = passing;  // streamed per iteration, as queries are

template <int dims>
using OwnTile = Tile<dims, own>;

/// Streamed tiles in shared memory. An iteration reads the previous pair, its own and the next, and
/// starts copying the one after that.
template <int dims>
struct Ring {
  static constexpr int pairs = 4;
  using Pair = TilePair<dims, dims, passing>;
  SharedAddress base;

  /// Returns the place for pair number `i`.
  __device__ __forceinline__ Pair operator[](int i) const { return {base, i % pairs}; }
};

template <int dims>
constexpr std::int64_t shared_bytes() {
  return 2 * OwnTile<dims>::bytes + Ring<dims>::pairs * Ring<dims>::Pair::bytes;
}

/// Waits for this thread's copies. Products may read them after the next barrier.
__device__ __forceinline__ void finish_copies() {
  cp_async_wait_group<0>();
  fence_proxy_async();
}

/// Computes dq for 128 queries in one head per block.
template <int dims>
__global__ void __launch_bounds__(threads, 1) backward_queries(AttentionRows<bf16> a) {
  const OwnTile<dims> q{shared_address(dynamic_shared_memory<unsigned char>())};
  const OwnTile<dims> dout{q.base + q.bytes};
  const Ring<dims> ring{dout.base + dout.bytes};
  const int head = blockIdx.x, batch = blockIdx.z;
  const auto block = a.runs.block(gridDim.y - 1 - blockIdx.y, own);
  const auto token = a.first_token(batch) + block.first, key = a.first_key_token(batch);
  const int kv_col = head / a.group() * dims;
  const int first = a.first_key(batch, block.first) / keys,
            tiles = (block.end() + keys - 1) / keys - first;
  const int row = my_warp() * 16, group_row = my_warp() / 4 * 64;
  const QueryRows rows(a, batch, head, block, row);
  const auto start = [&](int tile) {  // zeros after the last one, without a branch
    const int k0 = (first + tile) * keys;
    ring[tile].template copy<threads>(a.k, a.v, key + k0, kv_col, kv_col,
                                      tile < tiles ? a.keys - k0 : 0);
    cp_async_commit_group();
  };

  q.template copy<threads>(a.q, token, head * dims, block.count);
  dout.template copy<threads>(a.dout, token, head * dims, block.count);
  start(0);
  start(1);
  finish_copies();
  __syncthreads();
  float s[1][keys / 8][4], dq[1][dims / 8][4] = {};
  std::uint32_t ds[1][keys / 16][4] = {};
  wgmma_qk(s, q, group_row, ring[0].first);
  wgmma_wait_group<0>(s[0]);
  for (int tile = 0; tile < tiles; ++tile) {
    const int previous = tile > 0 ? tile - 1 : 0, next = tile + 1 < tiles ? tile + 1 : tile;
    float p[1][keys / 8][4], dp[1][keys / 8][4];
    wgmma_qk(dp, dout, group_row, ring[tile].second);
    wgmma_pv(dq, ds, ring[previous].first);
    recompute_p(p, s, rows, a.scale * log2_e);
    wgmma_qk(s, q, group_row, ring[next].first);
    start(tile + 2);
    const int k0 = (first + tile) * keys;
    if (a.hides_earlier_keys() || k0 + keys - 1 > block.position + row)
      mask_p(p, rows, block.position + row, k0);
    wgmma_wait_group<1>(dp[0]);
    wgmma_wait_group<1>(dq[0]);
    compute_ds(p, dp, rows);
    as_a_operand(ds[0], p[0]);
    work_before_wait(ds[0]);
    finish_copies();
    wgmma_wait_group<0>(s[0]);
    __syncthreads();  // the next pair is loaded, the previous one consumed
  }
  wgmma_pv(dq, ds, ring[tiles - 1].first);
  wgmma_wait_group<0>(dq[0]);
  rope_backward(dq[0], a, batch, block.first + row);
  q.put(row, dq[0], a.scale);  // no warp reads queries any more
  __syncwarp();
  q.template write<16>(a.dq, token, head * dims, row, block.count);
}

/// Computes dk and dv for 128 keys in one key-value head per block. Queries are streamed for all
/// heads that share the keys. At head dim 128 no registers are left for the next S.
template <int dims>
__global__ void __launch_bounds__(threads, 1) backward_keys(AttentionRows<bf16> a) {
  constexpr bool ahead = dims == 64;
  auto* shared = dynamic_shared_memory<unsigned char>();
  const OwnTile<dims> k{shared_address(shared)}, v{k.base + k.bytes};
  const Ring<dims> ring{v.base + v.bytes};
  auto* columns = reinterpret_cast<QueryColumns*>(shared + shared_bytes<dims>());
  const int kv_head = blockIdx.x, k0 = blockIdx.y * own, batch = blockIdx.z;
  const int count = a.keys - k0 < own ? a.keys - k0 : own;
  const auto token = a.first_key_token(batch) + k0;
  const int row = my_warp() * 16, group_row = my_warp() / 4 * 64;
  const VisibleQueryTiles meet(a, batch, k0, own);
  const auto start = [&](int m) {  // zeros after the last one, without a branch
    const int head = meet.head(kv_head, a.group(), m);
    const auto block = meet.queries(m);
    ring[m].template copy<threads>(a.q, a.dout, a.first_token(batch) + block.first, head * dims,
                                   head * dims, m < meet.all ? block.count : 0);
    cp_async_commit_group();
  };
  const auto statistics_of = [&](int m) {
    return PassingStatistics<threads>(a, batch, meet.head(kv_head, a.group(), m), meet.queries(m));
  };

  float s[1][passing / 8][4], dk[1][dims / 8][4] = {}, dv[1][dims / 8][4] = {};
  std::uint32_t ds[1][passing / 16][4] = {};
  if (meet.all > 0) {
    k.template copy<threads>(a.k, token, kv_head * dims, count);
    v.template copy<threads>(a.v, token, kv_head * dims, count);
    start(0);
    start(1);
    statistics_of(0).store(columns);
    finish_copies();
    __syncthreads();
    if constexpr (ahead) {
      wgmma_qk(s, k, group_row, ring[0].first);
      wgmma_wait_group<0>(s[0]);
    }
  }
  for (int m = 0; m < meet.all; ++m) {
    const int previous = m > 0 ? m - 1 : 0, next = m + 1 < meet.all ? m + 1 : m;
    const QueryColumns& passed = columns[m % 2];
    float p[1][passing / 8][4], dp[1][passing / 8][4];
    std::uint32_t left[1][passing / 16][4];
    if constexpr (!ahead) wgmma_qk(s, k, group_row, ring[m].first);
    wgmma_qk(dp, v, group_row, ring[m].second);
    wgmma_pv(dk, ds, ring[previous].first);
    if constexpr (!ahead) wgmma_wait_group<2>(s[0]);
    recompute_p(p, s, passed, 0, a.scale * log2_e);
    if constexpr (ahead) wgmma_qk(s, k, group_row, ring[next].first);
    const auto statistics = statistics_of(next);
    start(m + 2);
    const int query = meet.queries(m).position;
    if (a.hides_earlier_keys() || query < k0 + row + 15) mask_p(p, passed, 0, query, k0 + row);
    as_a_operand(left[0], p[0]);
    wgmma_pv(dv, left, ring[m].second);
    wgmma_wait_group<ahead ? 2 : 1>(dp[0]);
    wgmma_wait_group<ahead ? 2 : 1>(dk[0]);
    compute_ds(p, dp, passed, 0);
    as_a_operand(ds[0], p[0]);
    statistics.store(columns + (m + 1) % 2);
    work_before_wait(ds[0]);
    finish_copies();
    if constexpr (ahead) wgmma_wait_group<0>(s[0]);
    wgmma_wait_group<0>(dv[0]);
    __syncthreads();  // the next pair is loaded, the previous one consumed
  }
  if (meet.all > 0) {
    wgmma_pv(dk, ds, ring[meet.all - 1].first);
    wgmma_wait_group<0>(dk[0]);
  }
  rope_backward(dk[0], a, batch, k0 + row);
  k.put(row, dk[0], a.scale);  // no warp reads keys any more
  v.put(row, dv[0], 1.0F);
  __syncwarp();
  k.template write<16>(a.dk, token, kv_head * dims, row, count);
  v.template write<16>(a.dv, token, kv_head * dims, row, count);
}

template <int dims>
void launch_backward(Stream& stream, const AttentionCall& call,
                     const AttentionGradients& gradients) {
  const auto& s = call.shape;
  const auto rows = attention_rows<bf16>(call, gradients);
  launch(&backward_queries<dims>, {s.heads, rows.runs.blocks(own), s.batch}, threads,
         shared_bytes<dims>(), stream, rows);
  launch(&backward_keys<dims>, {s.kv_heads, divide_up(s.keys, own), s.batch}, threads,
         shared_bytes<dims>() + 2 * static_cast<std::int64_t>(sizeof(QueryColumns)), stream, rows);
}

}  // namespace

void wgmma_attention_backward(Stream& stream, const AttentionCall& call,
                              const AttentionGradients& gradients) {
  call.shape.head_dim == 64 ? launch_backward<64>(stream, call, gradients)
                            : launch_backward<128>(stream, call, gradients);
}

}  // namespace LLAMESH_OPS_CUDA
