#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: forward reads and writes D elements per token. Backward reads them and writes one
// row per distinct token (all of dtable if it overwrites). Before that, M^2 comparisons sort the M
// tokens without atomics: about 0.1 ms for 32k tokens, by instruction count. That is negligible in
// a step, but not for millions of tokens at once.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;

/// Mapping from tokens to rows in a vocabulary part.
struct VocabularyPart {
  std::int64_t first, count;

  __device__ __forceinline__ std::int64_t row_of(std::int32_t token) const { return token - first; }
  __device__ __forceinline__ bool has(std::int32_t token) const {
    return 0 <= row_of(token) && row_of(token) < count;
  }
};

template <int width, class T>
__global__ void __launch_bounds__(threads)
    take_rows(Rows<T> out, const std::int32_t* tokens, Rows<const T> table, VocabularyPart part,
              int cols) {
  const int token = tokens[blockIdx.x];
  if (token < 0) __trap();
  const bool here = part.has(token);
  const T* from = table[here ? part.row_of(token) : 0];
  T* to = out[blockIdx.x];
  for (int col = threadIdx.x * width; col < cols; col += blockDim.x * width)
    store<width>(to + col, here ? load<width>(from + col) : Pack<width>{});
}

/// Computes each token's rank in the order by token, then position. A warp compares 32 tokens with
/// an eighth of the others.
__global__ void __launch_bounds__(threads)
    sort_tokens(std::int32_t* order, std::int32_t* sorted, const std::int32_t* tokens, int count) {
  auto* places = dynamic_shared_memory<std::int32_t>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int me = blockIdx.x * 32 + lane;
  const std::int32_t mine = me < count ? tokens[me] : 0;
  if (mine < 0) __trap();
  const int part = (count + warps - 1) / warps;
  const int last = (warp + 1) * part < count ? (warp + 1) * part : count;
  int place = 0;
  for (int other = warp * part; other < last; ++other) {
    const std::int32_t token = tokens[other];
    place += token < mine || (token == mine && other < me) ? 1 : 0;
  }
  places[threadIdx.x] = place;
  __syncthreads();
  if (warp > 0 || me >= count) return;
  place = 0;
  for (int w = 0; w < warps; ++w) place += places[w * 32 + lane];
  order[place] = me;
  sorted[place] = mine;
}

template <class W, class T>
struct Sums {
  Rows<W> dtable;
  Rows<const T> dout;
  const std::int32_t* order;   // positions, sorted by token
  const std::int32_t* sorted;  // their tokens
  VocabularyPart part;
  int count, cols;
  bool accumulate;
};

/// Returns how many sorted tokens, starting at `first`, equal the one at `first`.
__device__ __forceinline__ int run_length(const std::int32_t* sorted, int first, int count,
                                          int* shared) {
  int length = 0;
  for (;;) {
    const int i = first + length + threadIdx.x;
    const bool equal = i < count && sorted[i] == sorted[first];
    const int more = block_sum(equal ? 1 : 0, shared);
    __syncthreads();
    length += more;
    if (more < static_cast<int>(blockDim.x)) return length;
  }
}

/// For few rows: each thread sums its columns over all of them.
template <int width, class W, class T>
__device__ __forceinline__ void sum_few(const Sums<W, T>& a, W* to, const std::int32_t* order,
                                        int length) {
  for (int col = threadIdx.x * width; col < a.cols; col += blockDim.x * width) {
    auto total = a.accumulate ? load<width>(to + col) : Pack<width>{};
    for (int i = 0; i < length; ++i) {
      const auto x = load<width>(a.dout[order[i]] + col);
#pragma unroll
      for (int j = 0; j < width; ++j) total.v[j] += x.v[j];
    }
    store<width>(to + col, total);
  }
}

/// For many rows: each warp sums every eighth row, then the block adds up its warps, a group of
/// columns at a time.
template <int width, class W, class T>
__device__ __forceinline__ void sum_many(const Sums<W, T>& a, W* to, const std::int32_t* order,
                                         int length) {
  constexpr int columns = 32 * width;
  auto* sums = dynamic_shared_memory<float>() + 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int first = 0; first < a.cols; first += columns) {
    const int col = first + lane * width;
    Pack<width> total{};
    for (int i = warp; col < a.cols && i < length; i += warps) {
      const auto x = load<width>(a.dout[order[i]] + col);
#pragma unroll
      for (int j = 0; j < width; ++j) total.v[j] += x.v[j];
    }
#pragma unroll
    for (int j = 0; j < width; ++j) sums[warp * columns + lane * width + j] = total.v[j];
    __syncthreads();
    for (int c = threadIdx.x; c < columns && first + c < a.cols; c += blockDim.x) {
      float sum = a.accumulate ? load_one(to + first + c) : 0.0F;
      for (int w = 0; w < warps; ++w) sum += sums[w * columns + c];
      store_one(to + first + c, sum);
    }
    __syncthreads();
  }
}

/// One block per sorted token. The first among equal tokens sums for all.
template <int width, class W, class T>
__global__ void __launch_bounds__(threads) sum_equal(Sums<W, T> a) {
  const int first = blockIdx.x;
  const int token = a.sorted[first];
  if (!a.part.has(token) || (first > 0 && a.sorted[first - 1] == token)) return;
  const int length = run_length(a.sorted, first, a.count, dynamic_shared_memory<int>());
  W* to = a.dtable[a.part.row_of(token)];
  if (length < 2 * warps)
    sum_few<width>(a, to, a.order + first, length);
  else
    sum_many<width>(a, to, a.order + first, length);
}

template <class W, class T>
void launch_sums(Stream& stream, const Tensor& dtable, const Tensor& dout,
                 const std::int32_t* order, std::int64_t first_row, Accumulate accumulate) {
  constexpr int wide = per_16_bytes < T >> per_16_bytes<W> ? per_16_bytes<T> : per_16_bytes<W>;
  const auto count = dout.rows();
  const bool can = dout.cols() % wide == 0 && aligned(dtable, dout);
  with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
    launch(&sum_equal<width, W, T>, {count}, threads, (32 + warps * 32 * width) * 4, stream,
           Sums<W, T>{rows_of<W>(dtable), rows_of<const T>(dout), order, order + count,
                      VocabularyPart{first_row, dtable.rows()}, static_cast<int>(count),
                      static_cast<int>(dout.cols()), accumulate == Accumulate::yes});
  });
}

}  // namespace

void embedding(Stream& stream, Tensor out, Tensor tokens, Tensor table, std::int64_t first_row) {
  expects(out.rows() == tokens.numel() && out.cols() == table.cols(), "embedding shapes");
  if (out.numel() == 0) return;
  with_type(out.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = out.cols() % wide == 0 && aligned(out, table);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&take_rows<width, T>, {out.rows()}, threads, 0, stream, rows_of<T>(out),
             static_cast<const std::int32_t*>(tokens.as<std::int32_t>()), rows_of<const T>(table),
             VocabularyPart{first_row, table.rows()}, static_cast<int>(out.cols()));
    });
  });
}

void embedding_backward(Stream& stream, Tensor dtable, Tensor dout, Tensor tokens,
                        std::int64_t first_row, Accumulate accumulate) {
  expects(dout.rows() == tokens.numel() && dout.cols() == dtable.cols(),
          "embedding_backward shapes");
  if (accumulate == Accumulate::no) fill(stream, dtable, 0.0F);
  const auto count = tokens.numel();
  if (dout.numel() == 0) return;
  const Scratch places(stream, 2 * count * 4);
  auto* order = places.as<std::int32_t>();
  launch(&sort_tokens, {divide_up(count, 32)}, threads, threads * 4, stream, order, order + count,
         static_cast<const std::int32_t*>(tokens.as<std::int32_t>()), static_cast<int>(count));
  with_type(dtable.dtype(), [&]<class W>(std::type_identity<W>) {
    with_type(dout.dtype(), [&]<class T>(std::type_identity<T>) {
      launch_sums<W, T>(stream, dtable, dout, order, first_row, accumulate);
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
