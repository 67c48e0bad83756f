#include "ops/cuda/attention/softmax_backward.cuh"
#include "ops/cuda/attention/wgmma_matmuls.cuh"

// Compute-bound: the same 7 products as in the mma backward kernels, also without atomics. Two
// warpgroups have 64 result rows each: while one computes P and dS, the tensor cores run the
// other's products.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace tensor_core;

constexpr int threads = 256;
constexpr int own = 128;   // tokens whose gradient a block computes
constexpr int keys = 128;  // streamed per iteration

template <int dims>
using OwnTile = Tile<dims, own>;

template <int dims, int rows>
constexpr std::int64_t shared_bytes() {
  return 2 * OwnTile<dims>::bytes + 2 * TilePair<dims, dims, rows>::bytes;
}

/// Waits until the next tiles are loaded and the previous ones consumed.
__device__ __forceinline__ void arrive() {
  cp_async_wait_group<0>();
  fence_proxy_async();
  __syncthreads();
}

/// Computes dq for 128 queries in one head per block.
template <int dims>
__global__ void __launch_bounds__(threads, 1) backward_queries(AttentionRows<bf16> a) {
  using Keys = TilePair<dims, dims, keys>;
  const OwnTile<dims> q{shared_address(dynamic_shared_memory<unsigned char>())};
  const OwnTile<dims> dout{q.base + q.bytes};
  const SharedAddress stages = dout.base + q.bytes;
  const int head = blockIdx.x, batch = blockIdx.z;
  const auto block = a.runs.block(gridDim.y - 1 - blockIdx.y, own);
  const auto token = a.first_token(batch) + block.first, key = a.first_key_token(batch);
  const int kv_col = head / a.group() * dims;
  const int row = my_warp() * 16, group_row = my_warp() / 4 * 64;
  const QueryRows rows(a, batch, head, block, row);

  int k0 = a.first_key(batch, block.first) / keys * keys;
  q.template copy<threads>(a.q, token, head * dims, block.count);
  dout.template copy<threads>(a.dout, token, head * dims, block.count);
  Keys(stages, 0).template copy<threads>(a.k, a.v, key + k0, kv_col, kv_col, a.keys - k0);
  cp_async_commit_group();
  float dq[1][dims / 8][4] = {};
  for (int stage = 0; k0 < block.end(); k0 += keys, stage ^= 1) {
    arrive();
    const int next = k0 + keys;
    if (next < block.end())
      Keys(stages, stage ^ 1)
          .template copy<threads>(a.k, a.v, key + next, kv_col, kv_col, a.keys - next);
    cp_async_commit_group();
    const auto [k, v] = Keys(stages, stage);
    float s[1][keys / 8][4], dp[1][keys / 8][4];
    wgmma_qk(s, q, group_row, k);
    wgmma_qk(dp, dout, group_row, v);
    wgmma_wait_group<1>(s[0]);
    recompute_p(s, rows, a.scale * log2_e);
    if (a.hides_earlier_keys() || k0 + keys - 1 > block.position + row)
      mask_p(s, rows, block.position + row, k0);
    wgmma_wait_group<0>(dp[0]);
    compute_ds(s, dp, rows);
    std::uint32_t left[1][keys / 16][4];
    as_a_operand(left[0], s[0]);
    wgmma_pv(dq, left, k);
    wgmma_wait_group<0>(dq[0]);
  }
  __syncthreads();  // all warps have read their rows, which now stage the results
  rope_backward(dq[0], a, batch, block.first + row);
  q.put(row, dq[0], a.scale);
  __syncwarp();
  q.template write<16>(a.dq, token, head * dims, row, block.count);
}

/// Computes dk and dv for 128 keys in one key-value head per block. Queries are streamed for all
/// heads that share the keys.
template <int dims>
__global__ void __launch_bounds__(threads, 1) backward_keys(AttentionRows<bf16> a) {
  using Queries = TilePair<dims, dims, passing>;
  auto* shared = dynamic_shared_memory<unsigned char>();
  const OwnTile<dims> k{shared_address(shared)}, v{k.base + k.bytes};
  const SharedAddress stages = v.base + k.bytes;
  auto* columns = reinterpret_cast<QueryColumns*>(shared + shared_bytes<dims, passing>());
  const int kv_head = blockIdx.x, k0 = blockIdx.y * own, batch = blockIdx.z;
  const int count = a.keys - k0 < own ? a.keys - k0 : own;
  const auto token = a.first_key_token(batch) + k0;
  const int row = my_warp() * 16, group_row = my_warp() / 4 * 64;
  const VisibleQueryTiles meet(a, batch, k0, own);
  const auto start = [&](int m) {
    const int head = meet.head(kv_head, a.group(), m);
    const auto block = meet.queries(m);
    Queries(stages, m % 2)
        .template copy<threads>(a.q, a.dout, a.first_token(batch) + block.first, head * dims,
                                head * dims, block.count);
  };
  const auto statistics_of = [&](int m) {
    return PassingStatistics<threads>(a, batch, meet.head(kv_head, a.group(), m), meet.queries(m));
  };

  if (meet.all > 0) {
    k.template copy<threads>(a.k, token, kv_head * dims, count);
    v.template copy<threads>(a.v, token, kv_head * dims, count);
    start(0);
    cp_async_commit_group();
    statistics_of(0).store(columns);
  }
  float dk[1][dims / 8][4] = {}, dv[1][dims / 8][4] = {};
  for (int m = 0; m < meet.all; ++m) {
    arrive();
    const int next = m + 1 < meet.all ? m + 1 : m;
    const auto statistics = statistics_of(next);
    if (next > m) start(next);
    cp_async_commit_group();
    const int query = meet.queries(m).position;
    if (query + passing > k0 + group_row) {  // otherwise all queries precede the warpgroup's keys
      const auto [q, dout] = Queries(stages, m % 2);
      const QueryColumns& passed = columns[m % 2];
      float s[1][passing / 8][4], dp[1][passing / 8][4];
      std::uint32_t p[1][passing / 16][4], ds[1][passing / 16][4];
      wgmma_qk(s, k, group_row, q);
      wgmma_qk(dp, v, group_row, dout);
      wgmma_wait_group<1>(s[0]);
      recompute_p(s, passed, 0, a.scale * log2_e);
      if (a.hides_earlier_keys() || query < k0 + row + 15) mask_p(s, passed, 0, query, k0 + row);
      as_a_operand(p[0], s[0]);
      wgmma_pv(dv, p, dout);
      wgmma_wait_group<1>(dp[0]);
      compute_ds(s, dp, passed, 0);
      as_a_operand(ds[0], s[0]);
      wgmma_pv(dk, ds, q);
      wgmma_wait_group<0>(dv[0]);
      wgmma_wait_group<0>(dk[0]);
    }
    statistics.store(columns + (m + 1) % 2);
  }
  __syncthreads();  // all warps have read their rows, which now stage the results
  rope_backward(dk[0], a, batch, k0 + row);
  k.put(row, dk[0], a.scale);
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
         shared_bytes<dims, keys>(), stream, rows);
  launch(&backward_keys<dims>, {s.kv_heads, divide_up(s.keys, own), s.batch}, threads,
         shared_bytes<dims, passing>() + 2 * static_cast<std::int64_t>(sizeof(QueryColumns)),
         stream, rows);
}

}  // namespace

void wgmma_attention_backward(Stream& stream, const AttentionCall& call,
                              const AttentionGradients& gradients) {
  call.shape.head_dim == 64 ? launch_backward<64>(stream, call, gradients)
                            : launch_backward<128>(stream, call, gradients);
}

}  // namespace LLAMESH_OPS_CUDA
