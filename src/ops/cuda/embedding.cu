#include "ops/cuda/kernels.hpp"
#include "ops/cuda/sort.hpp"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: forward reads and writes D elements per token. Backward reads them and writes one
// row per distinct token (all of dtable if it overwrites). Before that, a stable sort brings equal
// tokens together in the order of their positions, so every sum has one order.
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
              int cols, bool accumulate) {
  const int token = tokens[blockIdx.x];
  if (token < 0) __trap();
  const bool here = part.has(token);
  const T* from = table[here ? part.row_of(token) : 0];
  T* to = out[blockIdx.x];
  if (accumulate && !here) return;
  for (int col = threadIdx.x * width; col < cols; col += blockDim.x * width) {
    auto row = here ? load<width>(from + col) : Pack<width>{};
    if (accumulate) {
      const auto old = load<width>(to + col);
#pragma unroll
      for (int i = 0; i < width; ++i) row.v[i] += old.v[i];
    }
    store<width>(to + col, row);
  }
}

__global__ void __launch_bounds__(threads)
    find_positions(std::int32_t* ids, const std::int32_t* document_starts, int count,
                   RowPositions positions) {
  const int m = blockIdx.x * threads + threadIdx.x;
  if (m >= count) return;
  const auto start = document_starts ? document_starts[m] : 0;
  ids[m] = static_cast<std::int32_t>(positions[m % positions.tokens]) - start;
}

__global__ void __launch_bounds__(threads)
    number_tokens(std::int32_t* positions, const std::int32_t* tokens, int count) {
  const int i = blockIdx.x * threads + threadIdx.x;
  if (i >= count) return;
  if (tokens[i] < 0) __trap();
  positions[i] = i;
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

/// Runs of at least this many equal tokens are frequent: blocks share the columns of their sum.
constexpr int frequent = 2 * warps;

/// One block per sorted token. The first among equal tokens sums for all of a short run. Each
/// thread sums its columns.
template <int width, class W, class T>
__global__ void __launch_bounds__(threads) sum_rare(Sums<W, T> a) {
  const int first = blockIdx.x;
  const int token = a.sorted[first];
  if (!a.part.has(token) || (first > 0 && a.sorted[first - 1] == token)) return;
  int length = 1;
  while (length < frequent && first + length < a.count && a.sorted[first + length] == token)
    ++length;
  if (length == frequent) return;
  W* to = a.dtable[a.part.row_of(token)];
  for (int col = threadIdx.x * width; col < a.cols; col += blockDim.x * width) {
    auto total = a.accumulate ? load<width>(to + col) : Pack<width>{};
    for (int i = 0; i < length; ++i) {
      const auto x = load<width>(a.dout[a.order[first + i]] + col);
#pragma unroll
      for (int j = 0; j < width; ++j) total.v[j] += x.v[j];
    }
    store<width>(to + col, total);
  }
}

/// Returns the end of the run of `token` that includes `first`, by bisection.
__device__ __forceinline__ int end_of_run(const std::int32_t* sorted, int token, int first,
                                          int count) {
  int last = count;
  while (first < last) {
    const int middle = first + (last - first) / 2;
    if (sorted[middle] == token)
      first = middle + 1;
    else
      last = middle;
  }
  return last;
}

/// One block per `frequent` sorted tokens (grid x) and group of columns (grid y). It sums a run of
/// frequent tokens if its token is the first such one in the run. Each warp sums every eighth row,
/// then the block adds up its warps.
template <int width, class W, class T>
__global__ void __launch_bounds__(threads) sum_frequent(Sums<W, T> a) {
  constexpr int columns = 32 * width;
  const int at = blockIdx.x * frequent;
  const int token = a.sorted[at];
  if (!a.part.has(token) || (at > 0 && a.sorted[at - frequent] == token)) return;
  int first = at;
  while (first > 0 && a.sorted[first - 1] == token) --first;
  const int end = end_of_run(a.sorted, token, at, a.count);
  if (end - first < frequent) return;
  auto* sums = dynamic_shared_memory<float>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int begin = blockIdx.y * columns, col = begin + lane * width;
  Pack<width> total{};
  for (int i = first + warp; col < a.cols && i < end; i += warps) {
    const auto x = load<width>(a.dout[a.order[i]] + col);
#pragma unroll
    for (int j = 0; j < width; ++j) total.v[j] += x.v[j];
  }
#pragma unroll
  for (int j = 0; j < width; ++j) sums[warp * columns + lane * width + j] = total.v[j];
  __syncthreads();
  W* to = a.dtable[a.part.row_of(token)];
  for (int c = threadIdx.x; c < columns && begin + c < a.cols; c += blockDim.x) {
    float sum = a.accumulate ? load_one(to + begin + c) : 0.0F;
    for (int w = 0; w < warps; ++w) sum += sums[w * columns + c];
    store_one(to + begin + c, sum);
  }
}

template <class W, class T>
void launch_sums(Stream& stream, const Tensor& dtable, const Tensor& dout,
                 const std::int32_t* order, std::int64_t first_row, Accumulate accumulate) {
  constexpr int wide = per_16_bytes < T >> per_16_bytes<W> ? per_16_bytes<T> : per_16_bytes<W>;
  const auto count = dout.rows();
  const bool can = dout.cols() % wide == 0 && aligned(dtable, dout);
  with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
    const Sums<W, T> sums{rows_of<W>(dtable),
                          rows_of<const T>(dout),
                          order,
                          order + count,
                          VocabularyPart{first_row, dtable.rows()},
                          static_cast<int>(count),
                          static_cast<int>(dout.cols()),
                          accumulate == Accumulate::yes};
    launch(&sum_rare<width, W, T>, {count}, threads, 0, stream, sums);
    launch(&sum_frequent<width, W, T>,
           {divide_up(count, frequent), divide_up(dout.cols(), 32 * width)}, threads,
           warps * 32 * width * 4, stream, sums);
  });
}

}  // namespace

void embedding(Stream& stream, Tensor out, Tensor tokens, Tensor table, std::int64_t first_row,
               Accumulate accumulate) {
  expects(out.rows() == tokens.numel() && out.cols() == table.cols(), "embedding shapes");
  if (out.numel() == 0) return;
  with_type(out.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = out.cols() % wide == 0 && aligned(out, table);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&take_rows<width, T>, {out.rows()}, threads, 0, stream, rows_of<T>(out),
             static_cast<const std::int32_t*>(tokens.as<std::int32_t>()), rows_of<const T>(table),
             VocabularyPart{first_row, table.rows()}, static_cast<int>(out.cols()),
             accumulate == Accumulate::yes);
    });
  });
}

void token_positions(Stream& stream, Tensor ids, Tensor document_starts,
                     const RowPositions& positions) {
  const auto count = ids.numel();
  expects(count % positions.tokens == 0 && (!document_starts || document_starts.numel() == count),
          "{} tokens in rows of {}", count, positions.tokens);
  if (count == 0) return;
  launch(&find_positions, {divide_up(count, threads)}, threads, 0, stream, ids.as<std::int32_t>(),
         document_starts ? document_starts.as<std::int32_t>() : nullptr, static_cast<int>(count),
         positions);
}

void embedding_backward(Stream& stream, Tensor dtable, Tensor dout, Tensor tokens,
                        std::int64_t first_row, Accumulate accumulate) {
  expects(dout.rows() == tokens.numel() && dout.cols() == dtable.cols(),
          "embedding_backward shapes");
  if (accumulate == Accumulate::no) fill(stream, dtable, 0.0F);
  const auto count = tokens.numel();
  if (dout.numel() == 0) return;
  const Scratch places(stream, 3 * count * 4);  // order, sorted tokens, positions
  auto* const order = places.as<std::int32_t>();
  auto* const positions = order + 2 * count;
  const auto* const given = tokens.as<std::int32_t>();
  launch(&number_tokens, {divide_up(count, threads)}, threads, 0, stream, positions, given,
         static_cast<int>(count));
  sort_pairs(stream, order + count, given, order, positions, count, 31);
  with_type(dtable.dtype(), [&]<class W>(std::type_identity<W>) {
    with_type(dout.dtype(), [&]<class T>(std::type_identity<T>) {
      launch_sums<W, T>(stream, dtable, dout, order, first_row, accumulate);
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
