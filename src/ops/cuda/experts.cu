#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/cuda/kernels.hpp"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/sort.hpp"
#include "ops/cuda/vectorized.cuh"

// Memory-bound: route and its backward pass read and write N elements per token, dispatch_tokens,
// combine_tokens and weigh_rows_backward each row once. A library sorts the slots, by as many bits
// as an expert's number has.
namespace LLAMESH_OPS_CUDA {
namespace {

constexpr int threads = 256;
constexpr int warps = threads / 32;

/// A RouteCall without its logits. One warp has one token.
struct Routing {
  float* probabilities;
  std::int32_t* experts;
  float* weights;
  float* log_sum_exp;  ///< or null
  std::int64_t tokens;
  int count, k;
  bool normalize;

  explicit Routing(const RouteCall& c)
      : probabilities(c.probabilities.as<float>()),
        experts(c.experts.as<std::int32_t>()),
        weights(c.weights.as<float>()),
        log_sum_exp(c.log_sum_exp ? c.log_sum_exp.as<float>() : nullptr),
        tokens(c.logits.rows()),
        count(static_cast<int>(c.logits.cols())),
        k(static_cast<int>(c.experts.cols())),
        normalize(c.normalize) {}
};

__device__ __forceinline__ std::int64_t my_token() {
  return static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
}

/// Each lane reads and writes every 32nd element. Returns log(sum(exp(logits))) in every lane.
template <class T>
__device__ __forceinline__ float softmax(float* probabilities, const T* logits, int count) {
  const int lane = threadIdx.x % 32;
  float most = -INFINITY;
  for (int e = lane; e < count; e += 32) most = fmaxf(most, load_one(logits + e));
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2)
    most = fmaxf(most, __shfl_xor_sync(full_warp, most, mask));
  float total = 0;
  for (int e = lane; e < count; e += 32) {
    const float p = expf(load_one(logits + e) - most);
    probabilities[e] = p;
    total += p;
  }
  total = warp_sum(total);
  for (int e = lane; e < count; e += 32) probabilities[e] /= total;
  return most + logf(total);
}

/// An expert as a token's choice. One with NaN for its probability has -1 here, so it comes last.
struct Choice {
  float probability;
  int expert;

  __device__ __forceinline__ bool before(const Choice& other) const {
    return probability > other.probability ||
           (probability == other.probability && expert < other.expert);
  }
};

/// Returns the warp's next choice after `last`, in every lane.
__device__ __forceinline__ Choice next_choice(const Choice& last, const float* probabilities,
                                              int count) {
  Choice best{-2.0F, count};
  for (int e = threadIdx.x % 32; e < count; e += 32) {
    const float p = probabilities[e];
    const Choice mine{p >= 0 ? p : -1.0F, e};
    if (last.before(mine) && mine.before(best)) best = mine;
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const Choice other{__shfl_xor_sync(full_warp, best.probability, mask),
                       __shfl_xor_sync(full_warp, best.expert, mask)};
    if (other.before(best)) best = other;
  }
  return best;
}

template <class T>
__global__ void __launch_bounds__(threads) choose_experts(Routing a, Rows<const T> logits) {
  const auto token = my_token();
  if (token >= a.tokens) return;
  const int lane = threadIdx.x % 32;
  auto* probabilities = a.probabilities + token * a.count;
  auto* weights = a.weights + token * a.k;
  const float log_sum_exp = softmax(probabilities, logits[token], a.count);
  if (a.log_sum_exp && lane == 0) a.log_sum_exp[token] = log_sum_exp;
  Choice last{INFINITY, -1};
  float total = 0;
  for (int j = 0; j < a.k; ++j) {
    last = next_choice(last, probabilities, a.count);
    const float p = last.probability < 0 ? NAN : last.probability;
    total += p;
    if (lane != j % 32) continue;
    a.experts[token * a.k + j] = last.expert;
    weights[j] = p;
  }
  if (!a.normalize) return;
  for (int j = lane; j < a.k; j += 32) weights[j] /= total;
}

/// Every lane sums over the token's k experts, in their order. Then each computes every 32nd
/// element of p_e (dp_e - sum_f p_f dp_f + z_factor log_sum_exp).
template <class T>
__global__ void __launch_bounds__(threads)
    differentiate_choice(Routing a, const float* dweights, const float* added, float z_factor,
                         Rows<T> dlogits) {
  const auto token = my_token();
  if (token >= a.tokens) return;
  const int lane = threadIdx.x % 32;
  const auto* p = a.probabilities + token * a.count;
  const auto* experts = a.experts + token * a.k;
  const auto* dweight = dweights + token * a.k;
  float total = 1.0F, mean = 0;  // mean of dweights, if the weights are normalized
  if (a.normalize) {
    total = 0;
    for (int j = 0; j < a.k; ++j) total += p[experts[j]];
    for (int j = 0; j < a.k; ++j) mean += dweight[j] * p[experts[j]] / total;
  }
  float dot = 0;
  for (int j = 0; j < a.k; ++j) dot += p[experts[j]] * ((dweight[j] - mean) / total);
  if (added) {
    float mine = 0;
    for (int e = lane; e < a.count; e += 32) mine += p[e] * added[e];
    dot += warp_sum(mine);
  }
  if (z_factor != 0) dot -= z_factor * a.log_sum_exp[token];
  for (int e = lane; e < a.count; e += 32) {
    float d = added ? added[e] : 0.0F;
    for (int j = 0; j < a.k; ++j)
      if (experts[j] == e) d += (dweight[j] - mean) / total;
    store_one(dlogits[token] + e, p[e] * (d - dot));
  }
}

/// A RouteSums.
struct Sums {
  float *counts, *probabilities, *squares;
};

/// One expert per block, and a last block for the squares. Each thread sums over every 256th token.
__global__ void __launch_bounds__(threads) add_routes(Routing a, Sums sums) {
  auto* const shared = dynamic_shared_memory<float>();
  const int expert = blockIdx.x;
  if (expert == a.count) {
    float squares = 0;
    for (std::int64_t m = threadIdx.x; m < a.tokens; m += threads)
      squares += a.log_sum_exp[m] * a.log_sum_exp[m];
    squares = block_sum(squares, shared);
    if (threadIdx.x == 0) *sums.squares += squares;
    return;
  }
  float probability = 0, count = 0;
  for (std::int64_t m = threadIdx.x; m < a.tokens; m += threads) {
    probability += a.probabilities[m * a.count + expert];
    for (int j = 0; j < a.k; ++j) count += a.experts[m * a.k + j] == expert ? 1.0F : 0.0F;
  }
  probability = block_sum(probability, shared);
  __syncthreads();
  count = block_sum(count, shared);
  if (threadIdx.x != 0) return;
  sums.probabilities[expert] += probability;
  sums.counts[expert] += count;
}

__global__ void __launch_bounds__(threads)
    number_slots(std::int32_t* numbers, const std::int32_t* experts, int count, int num_experts) {
  const int slot = blockIdx.x * threads + threadIdx.x;
  if (slot >= count) return;
  if (experts[slot] < 0 || experts[slot] >= num_experts) __trap();
  numbers[slot] = slot;
}

/// `sorted` has each row's expert. An expert starts at its first row, or at the next expert's.
__global__ void __launch_bounds__(threads)
    find_starts(std::int32_t* starts, std::int32_t* places, const std::int32_t* slots,
                const std::int32_t* sorted, int count, int num_experts) {
  const int row = blockIdx.x * threads + threadIdx.x;
  if (row > count) return;
  const int before = row > 0 ? sorted[row - 1] : -1;
  const int here = row < count ? sorted[row] : num_experts;
  for (int e = before + 1; e <= here; ++e) starts[e] = row;
  if (row < count) places[slots[row]] = row;
}

/// One row per block.
template <int width, class T>
__global__ void __launch_bounds__(threads)
    take_tokens(Rows<T> rows, Rows<const T> x, const std::int32_t* slots, int k, int cols) {
  const T* from = x[slots[blockIdx.x] / k];
  T* to = rows[blockIdx.x];
  for (int col = threadIdx.x * width; col < cols; col += threads * width)
    store<width>(to + col, load<width>(from + col));
}

/// One token per block.
template <int width, class T>
__global__ void __launch_bounds__(threads)
    add_rows(Rows<T> y, Rows<const T> rows, const float* weights, const std::int32_t* places, int k,
             int cols, bool accumulate) {
  const auto first = static_cast<std::int64_t>(blockIdx.x) * k;
  T* to = y[blockIdx.x];
  for (int col = threadIdx.x * width; col < cols; col += threads * width) {
    auto total = accumulate ? load<width>(to + col) : Pack<width>{};
    for (auto slot = first; slot < first + k; ++slot) {
      const float weight = weights ? weights[slot] : 1.0F;
      const auto x = load<width>(rows[places[slot]] + col);
#pragma unroll
      for (int i = 0; i < width; ++i) total.v[i] += weight * x.v[i];
    }
    store<width>(to + col, total);
  }
}

template <class T>
struct WeighedRows {
  const float* weights;
  float* dweights;
  Rows<T> activated;
  Rows<const T> d_activated;
  Rows<T> d_up;
  int cols, up_cols;
};

/// One row per block.
template <int width, class T>
__global__ void __launch_bounds__(threads) weigh_rows(WeighedRows<T> a) {
  const std::int64_t row = blockIdx.x;
  const float weight = a.weights[row];
  float dot = 0;
  for (int col = threadIdx.x * width; col < a.cols; col += threads * width) {
    auto x = load<width>(a.activated[row] + col);
    const auto d = load<width>(a.d_activated[row] + col);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      dot += x.v[i] * d.v[i];
      x.v[i] *= weight;
    }
    store<width>(a.activated[row] + col, x);
  }
  for (int col = threadIdx.x * width; col < a.up_cols; col += threads * width) {
    auto x = load<width>(a.d_up[row] + col);
#pragma unroll
    for (int i = 0; i < width; ++i) x.v[i] *= weight;
    store<width>(a.d_up[row] + col, x);
  }
  dot = block_sum(dot, dynamic_shared_memory<float>());
  if (threadIdx.x == 0) a.dweights[row] = dot;
}

void check(const RouteCall& c) {
  expects(same_matrix_shape(c.logits, c.probabilities) && same_matrix_shape(c.experts, c.weights) &&
              c.experts.rows() == c.logits.rows() && c.probabilities.dense() && c.experts.dense() &&
              c.weights.dense(),
          "route shapes");
  expects(!c.log_sum_exp || c.log_sum_exp.numel() == c.logits.rows(), "route shapes");
  expects(1 <= c.experts.cols() && c.experts.cols() <= c.logits.cols(), "{} of {} experts",
          c.experts.cols(), c.logits.cols());
}

const std::int32_t* numbers_of(const Tensor& tensor) {
  return tensor.as<std::int32_t>();
}
const float* floats_of(const Tensor& tensor) {
  return tensor ? tensor.as<float>() : nullptr;
}

}  // namespace

void route(Stream& stream, const RouteCall& c) {
  check(c);
  if (c.logits.rows() == 0) return;
  with_type(c.logits.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&choose_experts<T>, {divide_up(c.logits.rows(), warps)}, threads, 0, stream, Routing(c),
           rows_of<const T>(c.logits));
  });
}

void route_backward(Stream& stream, const RouteCall& c, const RouteGradients& g) {
  check(c);
  expects(same_matrix_shape(g.dweights, c.weights) && g.dweights.dense() &&
              same_matrix_shape(g.dlogits, c.logits) &&
              (!g.dprobabilities || g.dprobabilities.numel() == c.logits.cols()) &&
              (g.z_factor == 0 || c.log_sum_exp),
          "route_backward shapes");
  if (c.logits.rows() == 0) return;
  with_type(g.dlogits.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&differentiate_choice<T>, {divide_up(c.logits.rows(), warps)}, threads, 0, stream,
           Routing(c), floats_of(g.dweights), floats_of(g.dprobabilities), g.z_factor,
           rows_of<T>(g.dlogits));
  });
}

void sum_routes(Stream& stream, const RouteCall& c, const RouteSums& s) {
  check(c);
  const auto count = c.logits.cols();
  expects(s.counts.numel() == count && s.probabilities.numel() == count && s.squares.numel() == 1,
          "sum_routes shapes");
  if (c.logits.rows() == 0) return;
  launch(&add_routes, {count + (c.log_sum_exp ? 1 : 0)}, threads, warps * 4, stream, Routing(c),
         Sums{s.counts.as<float>(), s.probabilities.as<float>(), s.squares.as<float>()});
}

void sort_by_expert(Stream& stream, const ExpertOrder& order, Tensor experts) {
  const auto count = experts.numel(), num_experts = order.starts.numel() - 1;
  expects(order.slots.numel() == count && order.places.numel() == count && num_experts >= 1,
          "sort_by_expert shapes");
  const Scratch scratch(stream, (2 * count + 1) * 4);
  auto* const sorted = scratch.as<std::int32_t>();
  auto* const numbers = sorted + count;
  auto* const slots = order.slots.as<std::int32_t>();
  if (count > 0) {
    const auto highest = static_cast<std::uint64_t>(std::max<std::int64_t>(num_experts - 1, 1));
    launch(&number_slots, {divide_up(count, threads)}, threads, 0, stream, numbers,
           numbers_of(experts), static_cast<int>(count), static_cast<int>(num_experts));
    sort_pairs(stream, sorted, numbers_of(experts), slots, numbers, count,
               static_cast<int>(std::bit_width(highest)));
  }
  launch(&find_starts, {divide_up(count + 1, threads)}, threads, 0, stream,
         order.starts.as<std::int32_t>(), order.places.as<std::int32_t>(), slots, sorted,
         static_cast<int>(count), static_cast<int>(num_experts));
}

void dispatch_tokens(Stream& stream, Tensor rows, Tensor x, Tensor slots) {
  expects(rows.rows() == slots.numel() && rows.cols() == x.cols() && x.rows() > 0 &&
              slots.numel() % x.rows() == 0,
          "dispatch_tokens shapes");
  if (rows.numel() == 0) return;
  with_type(x.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = x.cols() % wide == 0 && aligned(rows, x);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&take_tokens<width, T>, {rows.rows()}, threads, 0, stream, rows_of<T>(rows),
             rows_of<const T>(x), numbers_of(slots), static_cast<int>(slots.numel() / x.rows()),
             static_cast<int>(x.cols()));
    });
  });
}

void combine_tokens(Stream& stream, Tensor y, Tensor rows, Tensor weights, Tensor places,
                    Accumulate accumulate) {
  expects(rows.rows() == places.numel() && rows.cols() == y.cols() && y.rows() > 0 &&
              places.numel() % y.rows() == 0 && (!weights || weights.numel() == places.numel()),
          "combine_tokens shapes");
  with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = y.cols() % wide == 0 && aligned(y, rows);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&add_rows<width, T>, {y.rows()}, threads, 0, stream, rows_of<T>(y),
             rows_of<const T>(rows), floats_of(weights), numbers_of(places),
             static_cast<int>(places.numel() / y.rows()), static_cast<int>(y.cols()),
             accumulate == Accumulate::yes);
    });
  });
}

void weigh_rows_backward(Stream& stream, const WeighRowsBackwardCall& c) {
  const auto count = c.activated.rows();
  expects(c.weights.numel() == count && c.dweights.numel() == count &&
              same_matrix_shape(c.d_activated, c.activated) && c.d_up.rows() == count,
          "weigh_rows_backward shapes");
  if (count == 0) return;
  with_type(c.activated.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = c.activated.cols() % wide == 0 && c.d_up.cols() % wide == 0 &&
                     aligned(c.activated, c.d_activated, c.d_up);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&weigh_rows<width, T>, {count}, threads, warps * 4, stream,
             WeighedRows<T>{floats_of(c.weights), c.dweights.as<float>(), rows_of<T>(c.activated),
                            rows_of<const T>(c.d_activated), rows_of<T>(c.d_up),
                            static_cast<int>(c.activated.cols()), static_cast<int>(c.d_up.cols())});
    });
  });
}

}  // namespace LLAMESH_OPS_CUDA
