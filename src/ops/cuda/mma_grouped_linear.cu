#include "ops/cuda/grouped_product.cuh"

#include "ops/cuda/shared_tiles.cuh"

// Grouped products in bf16 with mma.sync: 128 x 128 elements of c per block, 64 x 64 per warp, so
// that the warp reads 128 bytes of shared memory per instruction. The next 64 steps of the depth
// load during the product. Two blocks fit on a multiprocessor.
namespace LLAMESH_OPS_CUDA {
namespace {

using namespace tensor_core;

constexpr int tile = 128;
constexpr int steps = 64;  // of the depth per iteration
constexpr int threads = 128;
constexpr int mine = 64;  // rows and columns of c per warp

/// A factor's tile as it lies in memory: by depth if its rows run along the depth.
template <bool by_depth>
using Factor = std::conditional_t<by_depth, Tile<steps, tile>, Tile<tile, steps>>;
constexpr int factor_bytes = Factor<true>::bytes;
static_assert(Factor<false>::bytes == factor_bytes);
constexpr std::int64_t shared_bytes = 2 * 2 * factor_bytes;

/// Starts copying from (row, col) of `from` (rows, cols); zeros outside.
template <class Tile>
__device__ __forceinline__ void copy(const Tile& to, const Rows<const bf16>& from, int row, int col,
                                     int rows, int cols) {
  const int first = col + rematerialized_thread_x() % Tile::chunks * 8;  // this thread's columns
  to.template copy<threads>(from, row, col, first < cols ? rows - row : 0);
}

/// Likewise for elements (at, k) of a factor that is (across, depth).
template <bool by_depth>
__device__ __forceinline__ void copy_factor(SharedAddress to, const Rows<const bf16>& from, int at,
                                            int k, int across, int depth) {
  const Factor<by_depth> tile_of{to};
  if constexpr (by_depth)
    copy(tile_of, from, at, k, across, depth);
  else
    copy(tile_of, from, k, at, depth, across);
}

/// sums[h][j] (16, 8) += rows [row, row + 64) of a times columns [col, col + 64) of b.
template <bool a_by_depth, bool b_by_depth>
__device__ __forceinline__ void multiply_add(float (&sums)[mine / 16][mine / 8][4],
                                             const Factor<a_by_depth>& a,
                                             const Factor<b_by_depth>& b, int row, int col) {
  const auto left = a_by_depth ? a.by_rows(row) : a.across(a.by_columns(), row / 16);
  const auto right = b_by_depth ? b.by_columns() + b.down(col) : b.across(b.by_rows(0), col / 16);
#pragma unroll
  for (int k = 0; k < steps / 16; ++k) {
    std::uint32_t x[mine / 16][4];
#pragma unroll
    for (int h = 0; h < mine / 16; ++h) {
      if constexpr (a_by_depth)
        ldmatrix_x4(x[h], a.across(left, k) + a.down(16 * h));
      else
        ldmatrix_x4_trans(x[h], a.across(left, h) + a.down(16 * k));
    }
#pragma unroll
    for (int j = 0; j < mine / 16; ++j) {
      std::uint32_t y[4];
      if constexpr (b_by_depth)
        ldmatrix_x4(y, b.across(right, k) + b.down(16 * j));
      else
        ldmatrix_x4_trans(y, b.across(right, j) + b.down(16 * k));
#pragma unroll
      for (int h = 0; h < mine / 16; ++h) {
        mma_m16n8k16(sums[h][2 * j], x[h], y[0], y[1]);
        mma_m16n8k16(sums[h][2 * j + 1], x[h], y[2], y[3]);
      }
    }
  }
}

/// Writes two adjacent elements.
template <class C>
__device__ __forceinline__ void write_pair(C* to, float first, float second, bool accumulate) {
  if constexpr (std::is_same_v<C, float>) {
    if (accumulate) {
      const auto old = load_words<Words2>(to);
      first += __uint_as_float(old.w[0]);
      second += __uint_as_float(old.w[1]);
    }
    store_words(to, Words2{{__float_as_uint(first), __float_as_uint(second)}});
  } else {
    if (accumulate) {
      const auto old = load_words<Words1>(to).w[0];
      first += __uint_as_float(old << 16U);
      second += __uint_as_float(old & 0xFFFF0000U);
    }
    store_words(to, Words1{{pack_bf16(first, second)}});
  }
}

template <class C>
__device__ __forceinline__ void write(const ExpertTile<C, bf16>& t,
                                      const float (&sums)[mine / 16][mine / 8][4], int row, int col,
                                      bool accumulate) {
#pragma unroll
  for (int i = 0; i < mine / 8; ++i) {
    const int m = t.row + row + 8 * i + my_row();
    if (m >= t.rows) return;
    auto* to = t.c[m];
#pragma unroll
    for (int j = 0; j < mine / 8; ++j) {
      const int n = t.col + col + 8 * j + my_col();
      const auto& from = sums[i / 2][j];
      if (n < t.cols) write_pair(to + n, from[i % 2 * 2], from[i % 2 * 2 + 1], accumulate);
    }
  }
}

template <bool a_by_depth, bool b_by_depth, class C>
__global__ void __launch_bounds__(threads, 2) multiply(GroupedProduct<C, bf16> product) {
  ExpertTile<C, bf16> t;
  if (!find_tile<tile>(t, product)) return;
  const Rows<const bf16> a{t.a.data, a_by_depth ? t.a.row : t.a.col};
  const Rows<const bf16> b{t.b.data, b_by_depth ? t.b.col : t.b.row};
  const SharedAddress shared = shared_address(dynamic_shared_memory<unsigned char>());
  const auto stage = [&](int k) {
    return shared + static_cast<SharedAddress>(k / steps % 2 * 2 * factor_bytes);
  };
  const auto copy_steps = [&](int k) {
    copy_factor<a_by_depth>(stage(k), a, t.row, k, t.rows, t.depth);
    copy_factor<b_by_depth>(stage(k) + factor_bytes, b, t.col, k, t.cols, t.depth);
  };
  const int row = my_warp() / 2 * mine, col = my_warp() % 2 * mine;
  const bool works = t.row + row < t.rows && t.col + col < t.cols;
  float sums[mine / 16][mine / 8][4] = {};
  if (t.depth > 0) copy_steps(0);
  cp_async_commit_group();
  for (int k = 0; k < t.depth; k += steps) {
    cp_async_wait_group<0>();
    __syncthreads();  // these steps are loaded, those before consumed
    if (k + steps < t.depth) copy_steps(k + steps);
    cp_async_commit_group();
    if (works)
      multiply_add<a_by_depth, b_by_depth>(sums, Factor<a_by_depth>{stage(k)},
                                           Factor<b_by_depth>{stage(k) + factor_bytes}, row, col);
  }
  if (works) write(t, sums, row, col, product.accumulate);
}

template <bool a_by_depth, bool b_by_depth, class C>
void launch_multiply(Stream& stream, const GroupedProduct<C, bf16>& product) {
  launch(&multiply<a_by_depth, b_by_depth, C>, tile_grid<tile>(product), threads, shared_bytes,
         stream, product);
}

}  // namespace

void mma_grouped_product(Stream& stream, const GroupedProduct<bf16, bf16>& product,
                         bool b_transposed) {
  b_transposed ? launch_multiply<true, true>(stream, product)
               : launch_multiply<true, false>(stream, product);
}

void mma_grouped_product(Stream& stream, const GroupedProduct<bf16, bf16>& product) {
  launch_multiply<false, false>(stream, product);
}

void mma_grouped_product(Stream& stream, const GroupedProduct<float, bf16>& product) {
  launch_multiply<false, false>(stream, product);
}

}  // namespace LLAMESH_OPS_CUDA
