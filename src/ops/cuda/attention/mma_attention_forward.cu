#include "ops/cuda/attention/mma_matmuls.cuh"
#include "ops/cuda/attention/online_softmax.cuh"

// FlashAttention-2 (Dao 2023) with mma.sync. Compute-bound: T^2 (E + V) H B multiply-adds without
// the causal half. A warp has 32 queries, so that a right factor from shared memory serves two
// products: 160 bytes of shared memory per instruction on average, low enough for two blocks per
// multiprocessor. Values load during the score product, the next keys during the value product.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace tensor_core;

constexpr int warps = 4;
constexpr int threads = 32 * warps;
constexpr int halves = 2;                     // groups of 16 queries per warp
constexpr int queries = warps * halves * 16;  // per block
constexpr int keys = 64;                      // per iteration

template <int dims>
using QueryTile = Tile<dims, queries>;
template <int dims>
using KeyTile = Tile<dims, keys>;

template <int dims, int value_dims>
constexpr std::int64_t shared_bytes() {
  return QueryTile<dims>::bytes + KeyTile<dims>::bytes + KeyTile<value_dims>::bytes;
}

/// 128 queries in one head per block. One token's heads are adjacent in the grid, so that heads
/// that share keys find them in L2 cache. The longest rows come first.
template <int dims, int value_dims, bool caps>
__global__ void __launch_bounds__(threads, 2) forward(AttentionRows<bf16> a) {
  const QueryTile<dims> q{shared_address(dynamic_shared_memory<unsigned char>())};
  const KeyTile<dims> k{q.base + q.bytes};
  const KeyTile<value_dims> v{k.base + k.bytes};
  const int head = blockIdx.x, batch = blockIdx.z;
  const auto block = a.runs.block(gridDim.y - 1 - blockIdx.y, queries);
  const auto token = a.first_key_token(batch);
  const int kv_head = head / a.group();
  int k0 = a.first_key(batch, block.first) / keys * keys;
  q.template copy<threads>(a.q, a.first_token(batch) + block.first, head * dims, block.count);
  k.template copy<threads>(a.k, token + k0, kv_head * dims, a.keys - k0);
  cp_async_commit_group();
  SoftmaxState<value_dims, halves> state;
  for (; k0 < block.end(); k0 += keys) {
    cp_async_wait_group<0>();
    __syncthreads();  // the keys are loaded, the previous values consumed
    v.template copy<threads>(a.v, token + k0, kv_head * value_dims, a.keys - k0);
    cp_async_commit_group();
    float s[halves][keys / 8][4];
    const int row = rematerialized_thread_x() / 32 * halves * 16;
    mma_qk(s, q, row, k);
    if constexpr (caps) cap(s, a);
    if (k0 + keys - 1 > block.position + row ||
        (a.hides_earlier_keys() && k0 < a.first_key(batch, block.first + block.count - 1)))
      mask(s, a, batch, block, row, k0);
    float rescale[halves][2];
    online_softmax_update(s, rescale, state, a.scale * log2_e);
    scale_rows(state.sums, rescale);
    std::uint32_t p[halves][keys / 16][4];
#pragma unroll
    for (int h = 0; h < halves; ++h) as_a_operand(p[h], s[h]);
    cp_async_wait_group<0>();
    __syncthreads();  // the values are loaded, the keys consumed
    const int next = k0 + keys;
    if (next < block.end())
      k.template copy<threads>(a.k, token + next, kv_head * dims, a.keys - next);
    cp_async_commit_group();
    mma_pv(state.sums, p, v);
  }
  const QueryTile<value_dims> staging{q.base};
  static_assert(value_dims <= dims, "each warp stages its results in its own queries");
  finish(state, a, staging, batch, head, block, my_warp() * halves * 16);
}

template <int dims, int value_dims>
void launch_forward(Stream& stream, const AttentionCall& call) {
  const auto& s = call.shape;
  const auto rows = attention_rows<bf16>(call);
  launch(s.softcap > 0 ? &forward<dims, value_dims, true> : &forward<dims, value_dims, false>,
         {s.heads, rows.runs.blocks(queries), s.batch}, threads, shared_bytes<dims, value_dims>(),
         stream, rows);
}

}  // namespace

void mma_attention(Stream& stream, const AttentionCall& call) {
  switch (call.shape.head_dim) {
    case 64:
      return launch_forward<64, 64>(stream, call);
    case 128:
      return launch_forward<128, 128>(stream, call);
    default:
      return launch_forward<192, 128>(stream, call);
  }
}

}  // namespace LLAMESH_OPS_CUDA
