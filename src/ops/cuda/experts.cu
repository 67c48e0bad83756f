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
  const float* bias;   ///< or null
  std::int64_t tokens;
  int count, k, groups, groups_taken;
  float scale;
  bool normalize, is_sigmoid;

  explicit Routing(const RouteCall& c)
      : probabilities(c.probabilities.as<float>()),
        experts(c.experts.as<std::int32_t>()),
        weights(c.weights.as<float>()),
        log_sum_exp(c.log_sum_exp ? c.log_sum_exp.as<float>() : nullptr),
        bias(c.bias ? c.bias.as<float>() : nullptr),
        tokens(c.logits.rows()),
        count(static_cast<int>(c.logits.cols())),
        k(static_cast<int>(c.experts.cols())),
        groups(static_cast<int>(c.groups)),
        groups_taken(static_cast<int>(c.groups_taken)),
        scale(c.scale),
        normalize(c.normalize),
        is_sigmoid(c.score == RouterScore::sigmoid) {}

  /// Returns what a token's experts are chosen by.
  __device__ __forceinline__ float key(const float* scores, int expert) const {
    return scores[expert] + (bias != nullptr ? bias[expert] : 0.0F);
  }
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

/// Likewise, the sigmoids of the logits.
template <class T>
__device__ __forceinline__ void sigmoids(float* scores, const T* logits, int count) {
  for (int e = threadIdx.x % 32; e < count; e += 32)
    scores[e] = 1.0F / (1.0F + expf(-load_one(logits + e)));
}

/// An expert, or a group, as a token's choice.
struct Choice {
  float key;
  int number;

  __device__ __forceinline__ bool before(const Choice& other) const {
    return key > other.key || (key == other.key && number < other.number);
  }
};

/// Returns the warp's first choice in the order of before(), in every lane.
__device__ __forceinline__ Choice first_of(Choice best) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const Choice other{__shfl_xor_sync(full_warp, best.key, mask),
                       __shfl_xor_sync(full_warp, best.number, mask)};
    if (other.before(best)) best = other;
  }
  return best;
}

/// Returns the highest key in a group, or with sigmoids the two highest together.
__device__ __forceinline__ float group_key(const Routing& a, const float* scores, int group) {
  const int size = a.count / a.groups;
  float first = -INFINITY, second = -INFINITY;
  for (int e = group * size; e < (group + 1) * size; ++e) {
    const float key = a.key(scores, e);
    second = fmaxf(second, fminf(first, key));
    first = fmaxf(first, key);
  }
  return a.is_sigmoid && size > 1 ? first + second : first;
}

/// Returns the groups that the token's experts are chosen from, a bit for each, in every lane. One
/// lane has one group.
__device__ __forceinline__ unsigned best_groups(const Routing& a, const float* scores) {
  if (a.groups == a.groups_taken) return ~0U;
  const int lane = threadIdx.x % 32;
  Choice mine{lane < a.groups ? group_key(a, scores, lane) : -INFINITY, lane};
  unsigned taken = 0;
  for (int i = 0; i < a.groups_taken; ++i) {
    const auto best = first_of(mine);
    taken |= 1U << best.number;
    if (lane == best.number) mine = {-INFINITY, 32 + lane};
  }
  return taken;
}

/// Returns the warp's next choice after `last`, in every lane. Experts in other groups, and those
/// with NaN for their score, come last.
__device__ __forceinline__ Choice next_choice(const Routing& a, const Choice& last,
                                              const float* scores, unsigned groups) {
  const int size = a.count / a.groups;
  Choice best{-INFINITY, a.count};
  for (int e = threadIdx.x % 32; e < a.count; e += 32) {
    const float key = a.key(scores, e);
    const bool counts = key >= -INFINITY && (groups >> (e / size) & 1U) != 0;
    const Choice mine{counts ? key : -INFINITY, e};
    if (last.before(mine) && mine.before(best)) best = mine;
  }
  return first_of(best);
}

template <class T>
__global__ void __launch_bounds__(threads) choose_experts(Routing a, Rows<const T> logits) {
  const auto token = my_token();
  if (token >= a.tokens) return;
  const int lane = threadIdx.x % 32;
  auto* probabilities = a.probabilities + token * a.count;
  auto* weights = a.weights + token * a.k;
  if (a.is_sigmoid) {
    sigmoids(probabilities, logits[token], a.count);
  } else {
    const float log_sum_exp = softmax(probabilities, logits[token], a.count);
    if (a.log_sum_exp && lane == 0) a.log_sum_exp[token] = log_sum_exp;
  }
  __syncwarp();  // all lanes see all scores
  const unsigned groups = best_groups(a, probabilities);
  Choice last{INFINITY, -1};
  float total = 0;
  for (int j = 0; j < a.k; ++j) {
    last = next_choice(a, last, probabilities, groups);
    const float p = probabilities[last.number];
    total += p;
    if (lane != j % 32) continue;
    a.experts[token * a.k + j] = last.number;
    weights[j] = p;
  }
  const float divisor = !a.normalize ? 1.0F : a.is_sigmoid ? total + 1e-20F : total;
  for (int j = lane; j < a.k; j += 32) weights[j] = a.scale * (weights[j] / divisor);
}

/// Every lane sums over the token's k experts, in their order. Then each computes every 32nd
/// element of p_e (dp_e - sum_f p_f dp_f + z_factor log_sum_exp), or with sigmoids of p_e (1 - p_e)
/// dp_e.
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
    if (a.is_sigmoid) total += 1e-20F;
    for (int j = 0; j < a.k; ++j) mean += dweight[j] * p[experts[j]] / total;
  }
  float dot = 0;
  for (int j = 0; j < a.k; ++j) dot += p[experts[j]] * (a.scale * ((dweight[j] - mean) / total));
  if (added) {
    float mine = 0;
    for (int e = lane; e < a.count; e += 32) mine += p[e] * added[e];
    dot += warp_sum(mine);
  }
  if (z_factor != 0) dot -= z_factor * a.log_sum_exp[token];
  for (int e = lane; e < a.count; e += 32) {
    float d = added ? added[e] : 0.0F;
    for (int j = 0; j < a.k; ++j)
      if (experts[j] == e) d += a.scale * ((dweight[j] - mean) / total);
    store_one(dlogits[token] + e, p[e] * (a.is_sigmoid ? (1 - p[e]) * d : d - dot));
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

/// One row per block.
template <int width, class T>
__global__ void __launch_bounds__(threads) scale_by_gates(Rows<T> y, float* gates, int cols) {
  const std::int64_t row = blockIdx.x;
  const float gate = 1 / (1 + expf(-gates[row]));
  for (int col = threadIdx.x * width; col < cols; col += threads * width) {
    auto x = load<width>(y[row] + col);
#pragma unroll
    for (int i = 0; i < width; ++i) x.v[i] *= gate;
    store<width>(y[row] + col, x);
  }
  __syncthreads();  // all threads have read the gate
  if (threadIdx.x == 0) gates[row] = gate;
}

__global__ void __launch_bounds__(threads) open_gates(float* gates, int count) {
  const int m = blockIdx.x * threads + threadIdx.x;
  if (m < count) gates[m] = 1 / (1 + expf(-gates[m]));
}

template <class T>
__global__ void __launch_bounds__(threads)
    differentiate_gates(T* dlogits, const float* dgates, const float* gates, int count) {
  const int m = blockIdx.x * threads + threadIdx.x;
  if (m < count) store_one(dlogits + m, dgates[m] * gates[m] * (1 - gates[m]));
}

void check(const RouteCall& c) {
  expects(same_matrix_shape(c.logits, c.probabilities) && same_matrix_shape(c.experts, c.weights) &&
              c.experts.rows() == c.logits.rows() && c.probabilities.dense() && c.experts.dense() &&
              c.weights.dense(),
          "route shapes");
  expects(!c.log_sum_exp || c.log_sum_exp.numel() == c.logits.rows(), "route shapes");
  expects(1 <= c.experts.cols() && c.experts.cols() <= c.logits.cols(), "{} of {} experts",
          c.experts.cols(), c.logits.cols());
  expects(1 <= c.groups_taken && c.groups_taken <= c.groups && c.groups <= 32 &&
              c.logits.cols() % c.groups == 0 &&
              c.experts.cols() <= c.logits.cols() / c.groups * c.groups_taken,
          "{} experts in {} of {} groups", c.logits.cols(), c.groups_taken, c.groups);
  expects(!c.bias || c.bias.numel() == c.logits.cols(), "route shapes");
  expects(c.score == RouterScore::softmax || !c.log_sum_exp, "a sigmoid has no log_sum_exp");
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
              (g.z_factor == 0 || c.log_sum_exp) &&
              (c.score == RouterScore::softmax || !g.dprobabilities),
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

void gate_rows(Stream& stream, Tensor y, Tensor gates) {
  expects(gates.dense() && (!y || y.rows() == gates.numel()), "gate_rows shapes");
  const auto count = gates.numel();
  if (count == 0) return;
  auto* const gate = gates.as<float>();
  if (!y)
    return launch(&open_gates, {divide_up(count, threads)}, threads, 0, stream, gate,
                  static_cast<int>(count));
  with_type(y.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int wide = per_16_bytes<T>;
    const bool can = y.cols() % wide == 0 && aligned(y);
    with_width<wide>(can, [&]<int width>(std::integral_constant<int, width>) {
      launch(&scale_by_gates<width, T>, {count}, threads, 0, stream, rows_of<T>(y), gate,
             static_cast<int>(y.cols()));
    });
  });
}

void gate_rows_backward(Stream& stream, Tensor dlogits, Tensor dgates, Tensor gates) {
  expects(dlogits.dense() && dlogits.numel() == gates.numel() && dgates.numel() == gates.numel(),
          "gate_rows_backward shapes");
  const auto count = gates.numel();
  if (count == 0) return;
  with_type(dlogits.dtype(), [&]<class T>(std::type_identity<T>) {
    launch(&differentiate_gates<T>, {divide_up(count, threads)}, threads, 0, stream,
           dlogits.as<T>(), floats_of(dgates), floats_of(gates), static_cast<int>(count));
  });
}

}  // namespace LLAMESH_OPS_CUDA
