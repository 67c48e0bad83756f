#include "ops/cuda/attention/online_softmax.cuh"
#include "ops/cuda/attention/wgmma_matmuls.cuh"

// FlashAttention-3 (Shah et al. 2024) without producer warps. Compute-bound: 2 T^2 E H B
// multiply-adds without the causal half. Two warpgroups have 64 queries each. While one key tile's
// probabilities are computed, the previous tile's value products and the other warpgroup's products
// run.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace tensor_core;

constexpr int threads = 256;
constexpr int queries = 128;  // per block
constexpr int keys = 128;     // per iteration

template <int dims>
using QueryTile = Tile<dims, queries>;
template <int dims>
using KeyTile = Tile<dims, keys>;

template <int dims>
constexpr std::int64_t shared_bytes() {
  return QueryTile<dims>::bytes + 4 * KeyTile<dims>::bytes;
}

/// A key tile and the previous tile's values, which load together.
template <int dims>
struct Stage {
  KeyTile<dims> k, v;

  __device__ __forceinline__ Stage(SharedAddress stages, int tile)
      : k{stages + static_cast<SharedAddress>(tile % 2 * 2 * KeyTile<dims>::bytes)},
        v{k.base + KeyTile<dims>::bytes} {}
};

/// 128 queries in one head per block, in the same order as the mma forward kernel.
template <int dims>
__global__ void __launch_bounds__(threads, 1) forward(AttentionRows<bf16> a) {
  const QueryTile<dims> q{shared_address(dynamic_shared_memory<unsigned char>())};
  const SharedAddress stages = q.base + q.bytes;
  const int head = blockIdx.x, batch = blockIdx.z;
  const auto block = a.runs.block(gridDim.y - 1 - blockIdx.y, queries);
  const auto token = a.first_key_token(batch);
  const int kv_col = head / a.group() * dims;
  const int first = a.first_key(batch, block.first) / keys,
            tiles = (block.end() + keys - 1) / keys - first;
  const int row = my_warp() * 16, group_row = my_warp() / 4 * 64;
  const auto arrive = [] {
    cp_async_wait_group<0>();
    fence_proxy_async();
    __syncthreads();  // the stage is loaded, the previous one consumed
  };
  const auto start = [&](int tile) {
    const Stage<dims> stage(stages, tile);
    const int k0 = (first + tile) * keys, v0 = k0 - keys;
    if (tile < tiles) stage.k.template copy<threads>(a.k, token + k0, kv_col, a.keys - k0);
    if (tile > 0) stage.v.template copy<threads>(a.v, token + v0, kv_col, a.keys - v0);
    cp_async_commit_group();
  };
  const auto mask_tile = [&](float(&s)[1][keys / 8][4], int tile) {
    const int k0 = (first + tile) * keys;
    if (k0 + keys - 1 > block.position + row ||
        (a.hides_earlier_keys() && k0 < a.first_key(batch, block.first + block.count - 1)))
      mask(s, a, batch, block, row, k0);
  };

  q.template copy<threads>(a.q, a.first_token(batch) + block.first, head * dims, block.count);
  start(0);
  SoftmaxState<dims, 1> state;
  std::uint32_t p[1][keys / 16][4];
  {
    arrive();
    start(1);
    float s[1][keys / 8][4], rescale[1][2];
    wgmma_qk(s, q, group_row, Stage<dims>(stages, 0).k);
    wgmma_wait_group<0>(s[0]);
    mask_tile(s, 0);
    online_softmax_update(s, rescale, state, a.scale * log2_e);
    as_a_operand(p[0], s[0]);
  }
  for (int tile = 1; tile < tiles; ++tile) {
    arrive();
    start(tile + 1);
    const Stage<dims> stage(stages, tile);
    float s[1][keys / 8][4], rescale[1][2];
    wgmma_qk(s, q, group_row, stage.k);
    wgmma_pv(state.sums, p, stage.v);
    wgmma_wait_group<1>(s[0]);
    mask_tile(s, tile);
    online_softmax_update(s, rescale, state, a.scale * log2_e);
    work_before_wait(state.row_sum[0][0] + state.row_sum[0][1]);
    wgmma_wait_group<0>(state.sums[0]);
    scale_rows(state.sums, rescale);
    as_a_operand(p[0], s[0]);
  }
  arrive();
  wgmma_pv(state.sums, p, Stage<dims>(stages, tiles).v);
  wgmma_wait_group<0>(state.sums[0]);
  finish(state, a, q, batch, head, block, row);
}

template <int dims>
void launch_forward(Stream& stream, const AttentionCall& call) {
  const auto& s = call.shape;
  const auto rows = attention_rows<bf16>(call);
  launch(&forward<dims>, {s.heads, rows.runs.blocks(queries), s.batch}, threads,
         shared_bytes<dims>(), stream, rows);
}

}  // namespace

void wgmma_attention(Stream& stream, const AttentionCall& call) {
  call.shape.head_dim == 64 ? launch_forward<64>(stream, call) : launch_forward<128>(stream, call);
}

}  // namespace LLAMESH_OPS_CUDA
