#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

#include "device/buffer.hpp"
#include "device/memory_meter.hpp"
#include "device/simulated/simulation.hpp"
#include "ops/bf16_products.hpp"
#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

using reference::Index;
using reference::Numbers;

class Experts : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, Experts, ::testing::Values(DType::f32, DType::bf16), dtype_name);

struct RoutingSizes {
  std::int64_t tokens, experts, k;
};
const RoutingSizes routing_sizes[] = {{1, 2, 1}, {5, 7, 3}, {3, 4, 4}, {37, 128, 8}, {300, 8, 2}};

// --- Routing ---

/// The buffers of a RouteCall for random logits.
struct Routing {
  Routing(DType dtype, const RoutingSizes& s, bool normalize)
      : logits(dtype, s.tokens, s.experts, 3, 2.0),
        probabilities(DType::f32, s.tokens, s.experts),
        weights(DType::f32, s.tokens, s.k),
        log_sum_exp(DType::f32, s.tokens, 1),
        experts(std::vector<std::int32_t>(static_cast<std::size_t>(s.tokens * s.k))),
        call{.logits = logits,
             .probabilities = probabilities,
             .experts = experts.tensor.reshape({s.tokens, s.k}),
             .weights = weights,
             .normalize = normalize,
             .log_sum_exp = log_sum_exp.view().reshape({s.tokens})} {}
  Matrix logits, probabilities, weights, log_sum_exp;
  Integers experts;
  ops::RouteCall call;
};

Numbers softmax(const Numbers& logits, Index cols) {
  Numbers p(logits.size());
  for (Index row = 0; row < p.size(); row += cols) {
    double total = 0.0;
    for (Index e = 0; e < cols; ++e) total += p[row + e] = std::exp(logits[row + e]);
    for (Index e = 0; e < cols; ++e) p[row + e] /= total;
  }
  return p;
}

Numbers log_sum_exp(const Numbers& logits, Index cols) {
  Numbers z;
  for (Index row = 0; row < logits.size(); row += cols) {
    double total = 0.0;
    for (Index e = 0; e < cols; ++e) total += std::exp(logits[row + e]);
    z.push_back(std::log(total));
  }
  return z;
}

/// The weights of `chosen` experts, k for each row of N probabilities.
Numbers weights_of(const Numbers& p, Index cols, const std::vector<std::int32_t>& chosen, Index k,
                   bool normalize) {
  Numbers weights;
  for (Index slot = 0; slot < chosen.size(); ++slot)
    weights.push_back(p[slot / k * cols + static_cast<Index>(chosen[slot])]);
  for (Index first = 0; normalize && first < weights.size(); first += k) {
    const auto from = weights.begin() + static_cast<std::ptrdiff_t>(first);
    const auto total = std::accumulate(from, from + static_cast<std::ptrdiff_t>(k), 0.0);
    for (Index j = 0; j < k; ++j) weights[first + j] /= total;
  }
  return weights;
}

/// The k largest of each row, the first of equal ones.
std::vector<std::int32_t> largest(const Numbers& numbers, Index cols, Index k) {
  std::vector<std::int32_t> all, order(cols);
  for (Index row = 0; row < numbers.size(); row += cols) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](auto a, auto b) {
      return numbers[row + static_cast<Index>(a)] > numbers[row + static_cast<Index>(b)];
    });
    all.insert(all.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
  }
  return all;
}

TEST_P(Experts, RouteTakesTheMostProbable) {
  for (const auto& s : routing_sizes)
    for (const bool normalize : {false, true}) {
      const Routing r(dtype(), s, normalize);
      const auto cols = static_cast<Index>(s.experts), k = static_cast<Index>(s.k);
      ops::route(stream, r.call);
      const auto p = softmax(r.logits.numbers(), cols);
      expect_near(r.probabilities.numbers(), p, 2e-6, "probabilities");
      EXPECT_EQ(r.experts.numbers, largest(r.logits.numbers(), cols, k));
      expect_near(r.weights.numbers(), weights_of(p, cols, r.experts.numbers, k, normalize), 2e-6,
                  "weights");
      expect_near(r.log_sum_exp.numbers(), log_sum_exp(r.logits.numbers(), cols), 2e-6,
                  "log_sum_exp");
    }
}

TEST_P(Experts, SumsOfRoutes) {
  for (const auto& s : routing_sizes) {
    Routing r(dtype(), s, true);
    const Matrix counts(DType::f32, 1, s.experts), sums(DType::f32, 1, s.experts),
        squares(DType::f32, 1, 1);
    auto expected_counts = counts.numbers(), expected_sums = sums.numbers(),
         expected_squares = squares.numbers();
    const auto add = [&] {
      ops::sum_routes(stream, r.call,
                      {.counts = counts.view().reshape({s.experts}),
                       .probabilities = sums.view().reshape({s.experts}),
                       .squares = squares.view().reshape({1})});
    };
    ops::route(stream, r.call);
    add();
    for (const auto e : r.experts.numbers) ++expected_counts[static_cast<Index>(e)];
    const auto p = r.probabilities.numbers();
    for (Index i = 0; i < p.size(); ++i) expected_sums[i % expected_sums.size()] += p[i];
    for (const auto z : r.log_sum_exp.numbers()) expected_squares[0] += z * z;
    expect_near(counts.numbers(), expected_counts, 1e-6, "counts");
    expect_near(sums.numbers(), expected_sums, 1e-6, "probabilities");
    expect_near(squares.numbers(), expected_squares, 1e-6, "squares");
    r.call.log_sum_exp = {};
    const auto before = squares.numbers();
    add();
    EXPECT_EQ(squares.numbers(), before);
  }
}

TEST_P(Experts, RouteGivesTiesToTheLowerExpert) {
  Routing r(dtype(), {2, 5, 3}, true);
  const double logits[2][5] = {{1.0, 2.0, 2.0, 1.0, 1.0}, {0.5, 0.5, 0.5, 0.5, 0.5}};
  for (std::int64_t m = 0; m < 2; ++m)
    for (std::int64_t e = 0; e < 5; ++e) r.logits.set(m, e, logits[m][e]);
  ops::route(stream, r.call);
  EXPECT_EQ(r.experts.numbers, (std::vector<std::int32_t>{1, 2, 0, 0, 1, 2}));
}

TEST_P(Experts, RouteOfNansAndHugeLogitsTakesDifferentExperts) {
  Routing r(dtype(), {2, 3, 2}, true);
  const double logits[2][3] = {{NAN, NAN, NAN}, {-3e38, 3e38, 0.0}};
  for (std::int64_t m = 0; m < 2; ++m)
    for (std::int64_t e = 0; e < 3; ++e) r.logits.set(m, e, logits[m][e]);
  ops::route(stream, r.call);
  EXPECT_EQ(r.experts.numbers, (std::vector<std::int32_t>{0, 1, 1, 0}));
  EXPECT_EQ(r.weights.get(1, 0), 1.0);
}

// The loss: sum(dweights * weights) + sum over the tokens of dprobabilities * probabilities and of
// z_factor / 2 * log_sum_exp^2.
TEST_P(Experts, RouteBackwardIsFiniteDifferences) {
  for (const auto& s : {routing_sizes[0], routing_sizes[1], routing_sizes[2]})
    for (const bool normalize : {false, true})
      for (const bool balances : {false, true}) {
        const Routing r(dtype(), s, normalize);
        const auto cols = static_cast<Index>(s.experts), k = static_cast<Index>(s.k);
        const Matrix dweights(DType::f32, s.tokens, s.k), added(DType::f32, 1, s.experts);
        const auto logits = r.logits.numbers();
        const float z_factor = balances ? 0.75F : 0.0F;
        ops::route(stream, r.call);
        ops::route_backward(stream, r.call,
                            {.dweights = dweights,
                             .dprobabilities = balances ? added.view() : Tensor(),
                             .dlogits = r.logits,
                             .z_factor = z_factor});
        auto factors = dweights.numbers();
        for (std::int64_t m = 0; balances && m < s.tokens; ++m)
          for (const auto d : added.numbers()) factors.push_back(d);
        for (const auto z : log_sum_exp(logits, cols))
          factors.push_back(balances ? z_factor * z : 0);
        const auto f = [&](const Numbers& v) {
          const auto p = softmax(v, cols);
          auto y = weights_of(p, cols, r.experts.numbers, k, normalize);
          if (balances) y.insert(y.end(), p.begin(), p.end());
          const auto z = log_sum_exp(v, cols);
          y.insert(y.end(), z.begin(), z.end());
          return y;
        };
        expect_near(r.logits.numbers(), reference::numerical_gradient(f, logits, factors), near(),
                    "dlogits", 1e-2);
        EXPECT_TRUE(r.logits.gaps_untouched());
      }
}

// --- Routing by biased sigmoids, in the best groups ---

/// The experts in the `taken` groups whose best numbers, so many, have the largest sums.
std::vector<bool> in_best_groups(const Numbers& keys, std::int64_t groups, std::int64_t taken,
                                 Index best = 2) {
  const auto size = keys.size() / static_cast<Index>(groups);
  std::vector<std::pair<double, Index>> sums;
  for (Index g = 0; g < static_cast<Index>(groups); ++g) {
    const auto first = keys.begin() + static_cast<std::ptrdiff_t>(g * size);
    Numbers group(first, first + static_cast<std::ptrdiff_t>(size));
    std::ranges::sort(group, std::greater());
    sums.emplace_back(-(group[0] + (best > 1 && size > 1 ? group[1] : 0)), g);
  }
  std::ranges::sort(sums);
  std::vector<bool> in(keys.size(), false);
  for (Index i = 0; i < static_cast<Index>(taken); ++i)
    for (Index e = 0; e < size; ++e) in[sums[i].second * size + e] = true;
  return in;
}

struct GroupedSizes {
  RoutingSizes sizes;
  std::int64_t groups, taken;
};
const GroupedSizes grouped_sizes[] = {{{5, 7, 3}, 1, 1},
                                      {{40, 12, 3}, 4, 2},
                                      {{3, 8, 4}, 8, 5},
                                      {{37, 128, 8}, 8, 4},
                                      {{200, 96, 6}, 32, 7}};

TEST_P(Experts, SigmoidRoutersChooseByBiasedScoresInTheBestGroups) {
  for (const auto& [s, groups, taken] : grouped_sizes)
    for (const bool normalize : {false, true}) {
      Routing r(dtype(), s, normalize);
      const Matrix bias(DType::f32, 1, s.experts);
      r.call.log_sum_exp = {};
      r.call.score = ops::RouterScore::sigmoid;
      r.call.bias = bias.view().reshape({s.experts});
      r.call.groups = groups;
      r.call.groups_taken = taken;
      r.call.scale = 2.5F;
      ops::route(stream, r.call);
      const auto cols = static_cast<Index>(s.experts), k = static_cast<Index>(s.k);
      auto scores = r.logits.numbers();
      for (auto& v : scores) v = 1 / (1 + std::exp(-v));
      const auto probabilities = r.probabilities.numbers(), biases = bias.numbers();
      Numbers keys;
      for (Index m = 0; m < static_cast<Index>(s.tokens); ++m) {
        Numbers row;
        for (Index e = 0; e < cols; ++e)  // as fp32 has them
          row.push_back(static_cast<float>(probabilities[m * cols + e]) +
                        static_cast<float>(biases[e]));
        const auto in = in_best_groups(row, groups, taken);
        for (Index e = 0; e < cols; ++e) keys.push_back(in[e] ? row[e] : -1e9);
      }
      expect_near(probabilities, scores, 2e-6, "scores");
      EXPECT_EQ(r.experts.numbers, largest(keys, cols, k));
      auto weights = weights_of(scores, cols, r.experts.numbers, k, normalize);
      for (auto& w : weights) w *= 2.5;
      expect_near(r.weights.numbers(), weights, 4e-6, "weights");

      const Matrix dweights(DType::f32, s.tokens, s.k);
      const auto logits = r.logits.numbers();
      ops::route_backward(stream, r.call, {.dweights = dweights, .dlogits = r.logits});
      if (s.tokens > 40) continue;  // finite differences take long
      const auto f = [&](Numbers v) {
        for (auto& x : v) x = 1 / (1 + std::exp(-x));
        auto y = weights_of(v, cols, r.experts.numbers, k, normalize);
        for (auto& w : y) w *= 2.5;
        return y;
      };
      expect_near(r.logits.numbers(), reference::numerical_gradient(f, logits, dweights.numbers()),
                  near(), "dlogits", 1e-2);
    }
}

TEST_P(Experts, SoftmaxRoutersTakeTheGroupsWithTheBestExperts) {
  for (const auto& [s, groups, taken] : grouped_sizes) {
    Routing r(dtype(), s, false);
    r.call.groups = groups;
    r.call.groups_taken = taken;
    r.call.scale = 2.5F;
    ops::route(stream, r.call);
    const auto cols = static_cast<Index>(s.experts), k = static_cast<Index>(s.k);
    const auto scores = r.probabilities.numbers();
    Numbers keys;
    for (Index row = 0; row < scores.size(); row += cols) {
      const auto first = scores.begin() + static_cast<std::ptrdiff_t>(row);
      const Numbers of_token(first, first + static_cast<std::ptrdiff_t>(cols));
      const auto in = in_best_groups(of_token, groups, taken, 1);
      for (Index e = 0; e < cols; ++e) keys.push_back(in[e] ? of_token[e] : -1);
    }
    EXPECT_EQ(r.experts.numbers, largest(keys, cols, k));
    auto weights = weights_of(scores, cols, r.experts.numbers, k, false);
    for (auto& w : weights) w *= 2.5;
    expect_near(r.weights.numbers(), weights, 4e-6, "weights");
  }
}

TEST_P(Experts, RouteRefusesGroupsThatDoNotFit) {
  Routing r(dtype(), {4, 6, 3}, true);
  r.call.groups = 4;
  EXPECT_THROW(ops::route(stream, r.call), std::exception);
  r.call.groups = 3;
  EXPECT_THROW(ops::route(stream, r.call), std::exception);  // one group has 2 experts
  r.call.groups_taken = 2;
  EXPECT_NO_THROW(ops::route(stream, r.call));
}

TEST_P(Experts, RouteRefusesMoreExpertsThanThereAre) {
  const Routing r(dtype(), {4, 2, 3}, true);
  EXPECT_THROW(ops::route(stream, r.call), std::exception);
}

// --- Expert order ---

struct SortedSlots {
  SortedSlots(device::Stream& stream, const Integers& experts, std::int64_t count)
      : starts(std::vector<std::int32_t>(static_cast<std::size_t>(count + 1))),
        slots(experts.numbers),
        places(experts.numbers),
        order{.starts = starts.tensor, .slots = slots.tensor, .places = places.tensor} {
    ops::sort_by_expert(stream, order, experts.tensor);
  }
  Integers starts, slots, places;
  ops::ExpertOrder order;
};

TEST_P(Experts, SortKeepsTheTokensOfAnExpertInOrder) {
  const SortedSlots some(stream, Integers({2, 0, 2, 3, 0, 2}), 5);
  EXPECT_EQ(some.starts.numbers, (std::vector<std::int32_t>{0, 2, 2, 5, 6, 6}));
  EXPECT_EQ(some.slots.numbers, (std::vector<std::int32_t>{1, 4, 0, 2, 5, 3}));
  EXPECT_EQ(some.places.numbers, (std::vector<std::int32_t>{2, 0, 3, 5, 1, 4}));
  const SortedSlots all_in_one(stream, Integers({1, 1, 1}), 2);
  EXPECT_EQ(all_in_one.starts.numbers, (std::vector<std::int32_t>{0, 0, 3}));
  EXPECT_EQ(all_in_one.slots.numbers, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_THROW(SortedSlots(stream, Integers({0, 2}), 2), std::exception);
  EXPECT_THROW(SortedSlots(stream, Integers({0, -1}), 2), std::exception);
}

TEST_P(Experts, TokensGoToTheirExpertsAndBack) {
  for (const auto& s : routing_sizes) {
    const std::int64_t cols = 19;
    const Integers experts(random_tokens(s.tokens * s.k, s.experts));
    const SortedSlots order(stream, experts, s.experts);
    const Matrix x(dtype(), s.tokens, cols, 3), rows(dtype(), s.tokens * s.k, cols, 1);
    ops::dispatch_tokens(stream, rows, x, order.slots.tensor);
    for (std::int64_t i = 0; i < s.tokens * s.k; ++i)
      for (std::int64_t c = 0; c < cols; ++c)
        ASSERT_EQ(rows.get(i, c), x.get(order.slots.numbers[static_cast<std::size_t>(i)] / s.k, c));
    EXPECT_TRUE(rows.gaps_untouched());
  }
}

/// y (M, D) = the sum over each token's slots of weight * row.
Numbers combined(const Numbers& rows, const Numbers& weights, const Integers& places, Index k) {
  const auto cols = rows.size() / places.numbers.size();
  Numbers y(rows.size() / k, 0.0);
  for (Index slot = 0; slot < places.numbers.size(); ++slot)
    for (Index c = 0; c < cols; ++c)
      y[slot / k * cols + c] += (weights.empty() ? 1.0 : weights[slot]) *
                                rows[static_cast<Index>(places.numbers[slot]) * cols + c];
  return y;
}

TEST_P(Experts, CombineIsTheWeightedSum) {
  for (const auto& s : routing_sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const bool weighted : {true, false}) {
        const std::int64_t cols = 19;
        const SortedSlots order(stream, Integers(random_tokens(s.tokens * s.k, s.experts)),
                                s.experts);
        const Matrix rows(dtype(), s.tokens * s.k, cols, 1), weights(DType::f32, s.tokens, s.k);
        const Matrix y(dtype(), s.tokens, cols, 2);
        auto expected = combined(rows.numbers(), weighted ? weights.numbers() : Numbers(),
                                 order.places, static_cast<Index>(s.k));
        if (accumulate == Accumulate::yes) expected = sum(expected, y.numbers());
        ops::combine_tokens(stream, y, rows, weighted ? weights.view() : Tensor(),
                            order.places.tensor, accumulate);
        expect_near(y.numbers(), expected, near(), "y");
        EXPECT_TRUE(y.gaps_untouched());
      }
}

TEST_P(Experts, WeighRowsBackwardScalesAndTakesDots) {
  for (const auto& s : routing_sizes) {
    const auto count = s.tokens * s.k;
    const Matrix weights(DType::f32, count, 1), dweights(DType::f32, count, 1);
    const Matrix activated(dtype(), count, 11, 2), d_activated(dtype(), count, 11);
    const Matrix d_up(dtype(), count, 22, 1);
    const auto a = activated.numbers(), d = d_activated.numbers(), up = d_up.numbers();
    ops::weigh_rows_backward(stream, {.weights = weights,
                                      .dweights = dweights,
                                      .activated = activated,
                                      .d_activated = d_activated,
                                      .d_up = d_up});
    Numbers dots(static_cast<Index>(count)), scaled_a, scaled_up;
    for (Index row = 0; row < dots.size(); ++row) {
      const auto weight = weights.numbers()[row];
      for (Index i = 0; i < 11; ++i) {
        dots[row] += a[row * 11 + i] * d[row * 11 + i];
        scaled_a.push_back(weight * a[row * 11 + i]);
      }
      for (Index i = 0; i < 22; ++i) scaled_up.push_back(weight * up[row * 22 + i]);
    }
    expect_near(dweights.numbers(), dots, 1e-5, "dweights");
    expect_near(activated.numbers(), scaled_a, near(), "activated");
    expect_near(d_up.numbers(), scaled_up, near(), "d_up");
    EXPECT_TRUE(activated.gaps_untouched() && d_up.gaps_untouched());
  }
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

TEST_P(Experts, GateRowsScalesByTheSigmoidAndBack) {
  for (const auto& s : routing_sizes) {
    const Matrix gates(DType::f32, s.tokens, 1, 0, 3.0), alone(DType::f32, s.tokens, 1);
    const Matrix y(dtype(), s.tokens, 21, 3), dgates(DType::f32, s.tokens, 1);
    const Matrix dlogits(dtype(), s.tokens, 1);
    Numbers expected = gates.numbers(), scaled = y.numbers(), slopes;
    ops::copy(stream, alone, gates);
    for (auto& gate : expected) gate = sigmoid(gate);
    for (Index i = 0; i < scaled.size(); ++i) scaled[i] *= expected[i / 21];
    for (Index m = 0; m < expected.size(); ++m)
      slopes.push_back(dgates.numbers()[m] * expected[m] * (1 - expected[m]));
    ops::gate_rows(stream, y, gates);
    ops::gate_rows(stream, {}, alone);
    expect_near(gates.numbers(), expected, 2e-6, "gates");
    EXPECT_EQ(alone.numbers(), gates.numbers());
    expect_near(y.numbers(), scaled, near(), "y");
    EXPECT_TRUE(y.gaps_untouched());
    ops::gate_rows_backward(stream, dlogits, dgates, gates);
    expect_near(dlogits.numbers(), slopes, near(), "dlogits");
  }
}

// --- Linear layers of experts ---

/// Returns the planner's seconds for a linear layer of experts (16, 32) and its two backward
/// passes, at 1 GFLOP/s.
std::array<double, 3> simulated_seconds(device::Kind kind, std::int64_t rows, std::int64_t experts,
                                        double bandwidth) {
  device::Hardware hardware;
  hardware.kind = kind;
  hardware.memory_bandwidth = bandwidth;
  hardware.peak_bf16 = 1e9;
  hardware.gemm_share = 1;
  const device::Simulation simulation(hardware);
  const device::Buffer buffer(1 << 24);
  const auto tensor = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
    return buffer.tensor(dtype, shape);
  };
  const Tensor x = tensor(DType::bf16, {rows, 32}), y = tensor(DType::bf16, {rows, 16});
  const Tensor w = tensor(DType::bf16, {experts, 16, 32}), starts = tensor(DType::i32, {experts});
  auto& simulated = device::compute_stream();
  std::array<double, 3> seconds{};
  const auto timed = [&](double& time, const auto& kernel) {
    const double start = simulation.now();
    kernel();
    time = simulation.now() - start;
  };
  timed(seconds[0], [&] { ops::grouped_linear(simulated, y, x, w, starts, Accumulate::no); });
  timed(seconds[1],
        [&] { ops::grouped_linear_backward_input(simulated, x, y, w, starts, Accumulate::no); });
  timed(seconds[2],
        [&] { ops::grouped_linear_backward_weight(simulated, w, y, x, starts, Accumulate::no); });
  return seconds;
}

TEST(SimulatedExperts, CostTheirRowsAndAllWeights) {
  const double flops_of_row = 2 * 16 * 32, bytes = 2 * (16 + 32), weights = 2 * 16 * 32;
  for (const double seconds : simulated_seconds(device::Kind::cpu, 1000, 4, 1e30))
    EXPECT_NEAR(seconds, 1000 * flops_of_row / 1e9, 1e-12);
  for (const double seconds : simulated_seconds(device::Kind::cpu, 10, 64, 1))
    EXPECT_NEAR(seconds, 10 * bytes + 64 * weights, 1e-3);
}

/// Each group ends with a tile that is half full on average; one without rows has none.
TEST(SimulatedExperts, FillTilesOnAGpu) {
  const double flops_of_row = 2 * 16 * 32;
  for (const auto& [rows, groups] : {std::pair(1000, 4.0), std::pair(2, 2.0)}) {
    const auto seconds = simulated_seconds(device::Kind::cuda, rows, 4, 1e30);
    EXPECT_NEAR(seconds[0], (rows + groups * 63.5) * flops_of_row / 1e9, 1e-12);
    EXPECT_NEAR(seconds[1], seconds[0], 1e-12);
    EXPECT_NEAR(seconds[2], (rows + groups * 31.5) * flops_of_row / 1e9, 1e-12);
  }
}

const std::vector<std::int32_t> group_starts[] = {
    {0, 5, 5, 6, 40}, {0, 0, 0, 0, 7}, {0, 33, 33, 33, 33}, {0, 1, 2, 3, 4}, {0, 0, 0, 0, 0}};

/// Calls f(expert, first, count) for each expert and appends the results.
template <class F>
Numbers for_each_group(const std::vector<std::int32_t>& starts, const F& f) {
  Numbers all;
  for (Index e = 0; e + 1 < starts.size(); ++e) {
    const Numbers part =
        f(e, static_cast<Index>(starts[e]), static_cast<Index>(starts[e + 1] - starts[e]));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

Numbers rows_of(const Numbers& all, Index first, Index count) {
  const auto from = all.begin() + static_cast<std::ptrdiff_t>(first);
  return {from, from + static_cast<std::ptrdiff_t>(count)};
}

TEST_P(Experts, GroupedLinearIsOneProductForEachExpert) {
  const Index in = 18, out = 33;
  for (const auto& starts : group_starts)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
      const Integers group(starts);
      const std::int64_t rows = starts.back();
      const Matrix w(dtype(), 4 * 33, 18);
      const Tensor stacked = w.view().reshape({4, 33, 18});
      const Matrix x(dtype(), rows, 18, 2), y(dtype(), rows, 33, 5);
      const bool added = accumulate == Accumulate::yes;
      const auto zeros = [&](const Matrix& m) {
        return added ? m.numbers() : Numbers(m.numbers().size(), 0.0);
      };

      auto before = zeros(y);
      ops::grouped_linear(stream, y, x, stacked, group.tensor, accumulate);
      expect_near(y.numbers(),
                  sum(for_each_group(starts,
                                     [&](Index e, Index first, Index n) {
                                       return reference::product(
                                           rows_of(x.numbers(), first * in, n * in), false,
                                           rows_of(w.numbers(), e * out * in, out * in), true, n,
                                           out, in);
                                     }),
                      before),
                  near(), "y");
      EXPECT_TRUE(y.gaps_untouched());

      for (const auto result : {DType::f32, DType::bf16}) {
        const Matrix dw(result, 4 * 33, 18);
        before = zeros(dw);
        ops::grouped_linear_backward_weight(stream, dw.view().reshape({4, 33, 18}), y, x,
                                            group.tensor, accumulate);
        expect_near(dw.numbers(),
                    sum(for_each_group(starts,
                                       [&](Index /*e*/, Index first, Index n) {
                                         return reference::product(
                                             rows_of(y.numbers(), first * out, n * out), true,
                                             rows_of(x.numbers(), first * in, n * in), false, out,
                                             in, n);
                                       }),
                        before),
                    tolerance(result), "dw");
      }

      before = zeros(x);
      ops::grouped_linear_backward_input(stream, x, y, stacked, group.tensor, accumulate);
      expect_near(x.numbers(),
                  sum(for_each_group(starts,
                                     [&](Index e, Index first, Index n) {
                                       return reference::product(
                                           rows_of(y.numbers(), first * out, n * out), false,
                                           rows_of(w.numbers(), e * out * in, out * in), false, n,
                                           in, out);
                                     }),
                      before),
                  near(), "dx");
      EXPECT_TRUE(x.gaps_untouched());
    }
}

std::int64_t scratch_in_use() {
  return device::MemoryMeter::instance()
      .by_use()[static_cast<std::size_t>(device::MemoryUse::scratch)];
}

/// Returns the scratch that calls on a new thread allocate, which has none yet.
template <class Calls>
std::int64_t scratch_of(const Calls& calls) {
  std::int64_t taken = 0;
  std::thread([&] {
    const auto before = scratch_in_use();
    calls();
    taken = scratch_in_use() - before;
  }).join();
  return taken;
}

// The plan does not know the groups.
TEST_P(Experts, ScratchOfGroupedLinearIsAsPlannedForAnyGroups) {
  const auto before = ops::bf16_products();
  ops::use_bf16_products(ops::Bf16Products::in_fp32);
  for (const auto& starts : group_starts) {
    const Integers group(starts);
    const std::int64_t rows = starts.back();
    const Matrix w(dtype(), 4 * 33, 18), x(dtype(), rows, 18, 2), y(dtype(), rows, 33, 5);
    const Tensor stacked = w.view().reshape({4, 33, 18});
    const auto multiply = [&](device::Stream& on) {
      ops::grouped_linear(on, y, x, stacked, group.tensor, Accumulate::no);
      ops::grouped_linear_backward_input(on, x, y, stacked, group.tensor, Accumulate::no);
      ops::grouped_linear_backward_weight(on, stacked, y, x, group.tensor, Accumulate::no);
    };
    const auto planned = [&] {
      device::Hardware hardware;
      hardware.kind = device::Kind::cpu;
      hardware.memory_bandwidth = hardware.peak_bf16 = hardware.peak_fp32 = 1;
      hardware.gemm_share = 1;
      const device::Simulation simulation(hardware);
      multiply(device::compute_stream());
      return scratch_in_use();
    }();
    EXPECT_EQ(scratch_of([&] { multiply(stream); }), planned) << rows << " rows";
  }
  ops::use_bf16_products(before);
}

TEST_P(Experts, GroupedBiasIsAddedToTheRowsOfItsExpert) {
  const Index cols = 77;
  for (const auto& starts : group_starts)
    for (const auto type : {DType::f32, DType::bf16}) {
      const Integers group(starts);
      const Matrix y(dtype(), starts.back(), 77, 3), b(type, 4, 77);
      auto expected = y.numbers();
      const auto bias = b.numbers();
      for (Index e = 0; e < 4; ++e)
        for (auto i = static_cast<Index>(starts[e]) * cols;
             i < static_cast<Index>(starts[e + 1]) * cols; ++i)
          expected[i] += bias[e * cols + i % cols];
      ops::grouped_bias(stream, y, b, group.tensor);
      expect_near(y.numbers(), expected, near(), "y");
      EXPECT_TRUE(y.gaps_untouched());
    }
}

TEST_P(Experts, GroupedBiasBackwardSumsTheRowsOfEachExpert) {
  const Index cols = 77;
  for (const auto& starts : group_starts)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const bool weighted : {false, true}) {
        const Integers group(starts);
        const std::int64_t rows = starts.back();
        const Matrix dy(dtype(), rows, 77, 2), b(dtype(), 4, 77), weights(DType::f32, rows, 1);
        const Matrix db(DType::f32, 4, 77), dweights(DType::f32, rows, 1);
        auto sums = accumulate == Accumulate::yes ? db.numbers() : Numbers(4 * cols, 0.0);
        auto dots = dweights.numbers();
        const auto d = dy.numbers(), bias = b.numbers(), weight = weights.numbers();
        for (Index e = 0; e < 4; ++e)
          for (auto row = static_cast<Index>(starts[e]); row < static_cast<Index>(starts[e + 1]);
               ++row)
            for (Index i = 0; i < cols; ++i) {
              sums[e * cols + i] += (weighted ? weight[row] : 1) * d[row * cols + i];
              dots[row] += d[row * cols + i] * bias[e * cols + i];
            }
        ops::grouped_bias_backward(stream, {.dy = dy,
                                            .starts = group.tensor,
                                            .weights = weighted ? weights.view() : Tensor(),
                                            .db = db,
                                            .accumulate = accumulate,
                                            .b = b,
                                            .dweights = weighted ? dweights.view() : Tensor()});
        expect_near(db.numbers(), sums, 1e-5, "db");
        if (weighted) {
          expect_near(dweights.numbers(), dots, 1e-5, "dweights");
        }
      }
}

TEST_P(Experts, GroupedBiasRefusesGroupsThatDoNotFit) {
  const Integers group({0, 1, 2, 3, 4});
  const Matrix y(dtype(), 4, 6), b(dtype(), 4, 6), of_three(dtype(), 3, 6), narrow(dtype(), 4, 5);
  EXPECT_THROW(ops::grouped_bias(stream, y, of_three, group.tensor), std::exception);
  EXPECT_THROW(ops::grouped_bias(stream, y, narrow, group.tensor), std::exception);
  EXPECT_THROW(ops::grouped_bias(stream, y, b, Integers({0, 1, 2, 3, 5}).tensor), std::exception);
  EXPECT_THROW(ops::grouped_bias(stream, y, b, Integers({0, 2, 1, 3, 4}).tensor), std::exception);
  EXPECT_THROW(ops::grouped_bias_backward(stream, {.dy = y, .starts = group.tensor, .db = narrow}),
               std::exception);
  EXPECT_THROW(
      ops::grouped_bias_backward(stream, {.dy = y, .starts = group.tensor, .dweights = narrow}),
      std::exception);
}

TEST_P(Experts, GroupedLinearRefusesGroupsThatDoNotFit) {
  const Matrix w(dtype(), 2 * 3, 4), x(dtype(), 5, 4), y(dtype(), 5, 3);
  const Tensor stacked = w.view().reshape({2, 3, 4});
  for (const auto& starts : {std::vector<std::int32_t>{0, 2, 4}, {1, 2, 5}, {0, 6, 5}}) {
    const Integers group(starts);
    EXPECT_THROW(ops::grouped_linear(stream, y, x, stacked, group.tensor, Accumulate::no),
                 std::exception);
  }
  const Integers three({0, 1, 2, 5});
  EXPECT_THROW(ops::grouped_linear(stream, y, x, stacked, three.tensor, Accumulate::no),
               std::exception);
}

TEST_P(Experts, DoNotDependOnTheNumberOfThreads) {
  const RoutingSizes s{300, 8, 2};
  const Routing r(dtype(), s, true);
  const Matrix rows(dtype(), s.tokens * s.k, 64), y(dtype(), s.tokens, 64);
  expect_same_for_any_threads(
      [&] {
        ops::route(stream, r.call);
        const SortedSlots order(stream, r.experts, s.experts);
        ops::combine_tokens(stream, y, rows, r.weights, order.places.tensor, Accumulate::no);
      },
      [&] { return std::tuple(y.bytes(), r.weights.bytes()); });
}

}  // namespace
}  // namespace llamesh::test
