#include <cmath>
#include <limits>

#include "test_matrix.hpp"

namespace llamesh::test {
namespace {

class CudaExperts : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaExperts, ::testing::Values(DType::f32, DType::bf16),
                         dtype_name);

// --- Routing ---

struct RoutingSizes {
  std::int64_t tokens, experts, k;
};
const RoutingSizes routings[] = {{1, 3, 1}, {9, 8, 2}, {37, 128, 8}, {11, 70, 35}, {5, 4, 4}};

/// Both sides' arguments to route().
struct TestRouting {
  TestRouting(DType dtype, const RoutingSizes& sizes, bool normalizes)
      : s(sizes),
        normalize(normalizes),
        logits(dtype, s.tokens, s.experts, {3, 0}, 2.0),
        probabilities(DType::f32, s.tokens, s.experts),
        weights(DType::f32, s.tokens, s.k),
        log_sum_exp(DType::f32, 1, s.tokens),
        experts(std::vector<std::int32_t>(static_cast<std::size_t>(s.tokens * s.k), -1)) {}

  ops::RouteCall host() {
    return {logits.host(),
            probabilities.host(),
            experts.host().reshape({s.tokens, s.k}),
            weights.host(),
            normalize,
            log_sum_exp.host()};
  }
  ops::RouteCall device() {
    return {logits.device(),
            probabilities.device(),
            experts.device().reshape({s.tokens, s.k}),
            weights.device(),
            normalize,
            log_sum_exp.device()};
  }
  void route() {
    ops::route(host_stream(), host());
    ops::cuda::route(device_stream(), device());
  }

  RoutingSizes s;
  bool normalize;
  TestMatrix logits, probabilities, weights, log_sum_exp;
  TestIntegers experts;
};

TEST_P(CudaExperts, RouteChoosesTheSameExperts) {
  for (const auto& s : routings)
    for (const bool normalize : {false, true}) {
      SCOPED_TRACE(s.experts);
      TestRouting r(dtype(), s, normalize);
      for (std::int64_t e = 0; e < s.experts; e += 2) r.logits.set(0, e, 1.5);  // ties
      for (std::int64_t e = 0; e < s.experts && s.tokens > 1; ++e) r.logits.set(1, e, -0.25);
      r.route();
      EXPECT_EQ(r.experts.downloaded(), r.experts.numbers());
      r.probabilities.expect_equal(2e-6, "probabilities");
      r.weights.expect_equal(2e-6, "weights");
      r.log_sum_exp.expect_equal(2e-6, "log_sum_exp");
    }
}

TEST_P(CudaExperts, SumRoutes) {
  for (const auto& s : routings) {
    SCOPED_TRACE(s.experts);
    TestRouting r(dtype(), s, true);
    TestMatrix counts(DType::f32, 1, s.experts), probabilities(DType::f32, 1, s.experts);
    TestMatrix squares(DType::f32, 1, 1);
    r.route();
    for (int pass = 0; pass < 2; ++pass) {  // adds to what is there
      ops::sum_routes(host_stream(), r.host(),
                      {counts.host(), probabilities.host(), squares.host()});
      ops::cuda::sum_routes(device_stream(), r.device(),
                            {counts.device(), probabilities.device(), squares.device()});
    }
    counts.expect_equal(1e-6, "counts");
    probabilities.expect_equal(4e-6, "probabilities");
    squares.expect_equal(4e-6, "squares");
  }
}

TEST_P(CudaExperts, RouteOfTiesNansAndHugeLogits) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const double logits[4][5] = {{1.0, 2.0, 2.0, 1.0, 1.0},
                               {nan, 0.5, nan, nan, 4.0},
                               {-3e38, 3e38, 0.0, 0.0, 0.0},
                               {0.5, 0.5, 0.5, 0.5, 0.5}};
  TestRouting r(dtype(), {4, 5, 3}, true);
  for (std::int64_t m = 0; m < 4; ++m)
    for (std::int64_t e = 0; e < 5; ++e) r.logits.set(m, e, logits[m][e]);
  r.route();
  EXPECT_EQ(r.experts.downloaded(),
            (std::vector<std::int32_t>{1, 2, 0, 0, 1, 2, 1, 0, 2, 0, 1, 2}));
  EXPECT_EQ(r.experts.numbers(), r.experts.downloaded());
  std::vector<float> weights(12);
  std::memcpy(weights.data(), r.weights.downloaded().data(), 48);
  for (std::size_t j = 3; j < 6; ++j) EXPECT_TRUE(std::isnan(weights[j]));
  EXPECT_EQ(weights[6], 1.0F);
}

// In a bf16 model the logits are fp32 and their gradient is bf16.
TEST_P(CudaExperts, RouteBackward) {
  for (const auto& s : routings)
    for (const bool normalize : {false, true})
      for (const bool balances : {false, true}) {
        SCOPED_TRACE(s.experts);
        TestRouting r(DType::f32, s, normalize);
        TestMatrix dweights(DType::f32, s.tokens, s.k), added(DType::f32, 1, s.experts);
        TestMatrix dlogits(dtype(), s.tokens, s.experts, {0, 5});
        r.route();
        ops::route_backward(host_stream(), r.host(),
                            {.dweights = dweights.host(),
                             .dprobabilities = balances ? added.host() : Tensor(),
                             .dlogits = dlogits.host(),
                             .z_factor = balances ? 0.25F : 0.0F});
        ops::cuda::route_backward(device_stream(), r.device(),
                                  {.dweights = dweights.device(),
                                   .dprobabilities = balances ? added.device() : Tensor(),
                                   .dlogits = dlogits.device(),
                                   .z_factor = balances ? 0.25F : 0.0F});
        dlogits.expect_equal(near(), "dlogits", 0.1);
      }
}

TEST_P(CudaExperts, RouteBackwardMayOverwriteTheLogits) {
  TestRouting r(dtype(), {9, 8, 2}, true);
  TestMatrix dweights(DType::f32, 9, 2);
  r.route();
  ops::route_backward(host_stream(), r.host(),
                      {.dweights = dweights.host(), .dlogits = r.logits.host()});
  ops::cuda::route_backward(device_stream(), r.device(),
                            {.dweights = dweights.device(), .dlogits = r.logits.device()});
  r.logits.expect_equal(near(), "dlogits", 0.1);
}

TEST_P(CudaExperts, SigmoidRoutersChooseByBiasedScoresInTheBestGroups) {
  struct Grouped {
    std::int64_t tokens, experts, k, groups, taken;
  };
  for (const auto& s : {Grouped{5, 7, 3, 1, 1}, Grouped{40, 12, 3, 4, 2}, Grouped{3, 8, 4, 8, 5},
                        Grouped{37, 128, 8, 8, 4}, Grouped{200, 96, 6, 32, 7}})
    for (const bool normalize : {false, true}) {
      SCOPED_TRACE(s.experts);
      TestRouting r(dtype(), {s.tokens, s.experts, s.k}, normalize);
      TestMatrix bias(DType::f32, 1, s.experts), dweights(DType::f32, s.tokens, s.k);
      const auto biased = [&](ops::RouteCall call, const Tensor& b) {
        call.log_sum_exp = {};
        call.score = ops::RouterScore::sigmoid;
        call.bias = b.reshape({s.experts});
        call.groups = s.groups;
        call.groups_taken = s.taken;
        call.scale = 2.5F;
        return call;
      };
      const auto host = biased(r.host(), bias.host()), device = biased(r.device(), bias.device());
      ops::route(host_stream(), host);
      ops::cuda::route(device_stream(), device);
      EXPECT_EQ(r.experts.downloaded(), r.experts.numbers());
      r.probabilities.expect_equal(2e-6, "scores");
      r.weights.expect_equal(4e-6, "weights");
      ops::route_backward(host_stream(), host,
                          {.dweights = dweights.host(), .dlogits = r.logits.host()});
      ops::cuda::route_backward(device_stream(), device,
                                {.dweights = dweights.device(), .dlogits = r.logits.device()});
      r.logits.expect_equal(near(), "dlogits", 0.1);
    }
}

// --- Expert order ---

struct TestOrder {
  TestOrder(const std::vector<std::int32_t>& chosen, std::int64_t count)
      : experts(chosen),
        starts(std::vector<std::int32_t>(static_cast<std::size_t>(count + 1), -1)),
        slots(std::vector<std::int32_t>(chosen.size(), -1)),
        places(slots.numbers()) {
    ops::sort_by_expert(host_stream(), {starts.host(), slots.host(), places.host()},
                        experts.host());
    ops::cuda::sort_by_expert(device_stream(), {starts.device(), slots.device(), places.device()},
                              experts.device());
  }
  TestIntegers experts, starts, slots, places;
};

TEST(CudaExpertOrder, IsTheCpus) {
  std::vector<std::int32_t> few;  // most experts have no token
  for (const auto token : random_tokens(700, 5)) few.push_back(250 + token * token);
  const std::pair<std::vector<std::int32_t>, std::int64_t> cases[] = {
      {{2, 0, 2, 3, 0, 2}, 5},
      {{1, 1, 1}, 2},
      {{0, 0}, 1},
      {random_tokens(600, 8), 8},
      {random_tokens(256, 13), 13},
      {{7}, 128},
      {few, 300},
      {std::vector<std::int32_t>(513, 63), 64}};
  for (const auto& [experts, count] : cases) {
    SCOPED_TRACE(count);
    TestOrder order(experts, count);
    EXPECT_EQ(order.starts.downloaded(), order.starts.numbers());
    EXPECT_EQ(order.slots.downloaded(), order.slots.numbers());
    EXPECT_EQ(order.places.downloaded(), order.places.numbers());
  }
}

struct RowSizes {
  std::int64_t tokens, k, cols;
  Place place;
};
const RowSizes row_sizes[] = {
    {1, 1, 3, {}}, {8, 2, 33, {7, 0}}, {5, 3, 2056, {8, 8}}, {20, 8, 64, {}}, {4, 2, 1024, {0, 1}}};

TEST_P(CudaExperts, TokensGoToTheirExpertsAndBack) {
  for (const auto& [tokens, k, cols, place] : row_sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const bool weighted : {true, false}) {
        SCOPED_TRACE(cols);
        TestOrder order(random_tokens(tokens * k, 6), 6);
        TestMatrix x(dtype(), tokens, cols, place), rows(dtype(), tokens * k, cols, place);
        TestMatrix weights(DType::f32, tokens, k), y(dtype(), tokens, cols, place);
        ops::dispatch_tokens(host_stream(), rows.host(), x.host(), order.slots.host());
        ops::cuda::dispatch_tokens(device_stream(), rows.device(), x.device(),
                                   order.slots.device());
        rows.expect_equal(0, "rows");
        ops::combine_tokens(host_stream(), y.host(), rows.host(),
                            weighted ? weights.host() : Tensor(), order.places.host(), accumulate);
        ops::cuda::combine_tokens(device_stream(), y.device(), rows.device(),
                                  weighted ? weights.device() : Tensor(), order.places.device(),
                                  accumulate);
        y.expect_equal(near(), "y");
      }
}

TEST_P(CudaExperts, WeighRowsBackward) {
  for (const auto& [tokens, k, cols, place] : row_sizes) {
    SCOPED_TRACE(cols);
    TestMatrix weights(DType::f32, tokens * k, 1), dweights(DType::f32, tokens * k, 1);
    TestMatrix activated(dtype(), tokens * k, cols, place),
        d_activated(dtype(), tokens * k, cols, place);
    TestMatrix d_up(dtype(), tokens * k, 2 * cols, place);
    ops::weigh_rows_backward(host_stream(), {weights.host(), dweights.host(), activated.host(),
                                             d_activated.host(), d_up.host()});
    ops::cuda::weigh_rows_backward(device_stream(),
                                   {weights.device(), dweights.device(), activated.device(),
                                    d_activated.device(), d_up.device()});
    dweights.expect_equal(4e-6, "dweights", std::sqrt(static_cast<double>(cols)));
    activated.expect_equal(near(), "activated");
    d_up.expect_equal(near(), "d_up");
  }
}

TEST_P(CudaExperts, GateRowsAndTheirGradient) {
  for (const auto& [tokens, k, cols, place] : row_sizes) {
    SCOPED_TRACE(cols);
    TestMatrix y(dtype(), tokens, cols, place), gates(DType::f32, tokens, 1);
    TestMatrix alone(DType::f32, tokens, 1), dgates(DType::f32, tokens, 1);
    TestMatrix dlogits(dtype(), tokens, 1);
    ops::gate_rows(host_stream(), y.host(), gates.host());
    ops::cuda::gate_rows(device_stream(), y.device(), gates.device());
    ops::gate_rows(host_stream(), {}, alone.host());
    ops::cuda::gate_rows(device_stream(), {}, alone.device());
    ops::gate_rows_backward(host_stream(), dlogits.host(), dgates.host(), gates.host());
    ops::cuda::gate_rows_backward(device_stream(), dlogits.device(), dgates.device(),
                                  gates.device());
    y.expect_equal(near(), "y");
    gates.expect_equal(4e-6, "gates");
    alone.expect_equal(4e-6, "gates alone");
    dlogits.expect_equal(near(), "dlogits");
  }
}

// --- Linear layers of experts ---

struct Groups {
  std::vector<std::int32_t> starts;
  std::int64_t in, out;
  Place place;
};
// Rows of bf16 at multiples of 16 bytes run on tensor cores, in tiles of 128; all others in tiles
// of 64.
const Groups groups[] = {{{0, 130, 130, 131, 195, 300}, 200, 136, {8, 8}},
                         {{0, 0, 3, 5, 9, 9, 9, 80, 81, 90, 100, 120, 140}, 16, 24, {}},
                         {{0, 0, 0, 257}, 64, 8, {0, 8}},
                         {{0, 70, 70, 71, 100}, 33, 70, {3, 1}},
                         {{0, 20}, 72, 131, {}},
                         {{0, 0, 0}, 16, 8, {}}};

/// Both sides' matrices of a grouped linear layer.
struct TestGroups {
  TestGroups(DType dtype, const Groups& g)
      : count(std::ssize(g.starts) - 1),
        shape{count, g.out, g.in},
        starts(g.starts),
        x(dtype, g.starts.back(), g.in, g.place),
        y(dtype, g.starts.back(), g.out, g.place),
        w(dtype, count * g.out, g.in) {}

  std::int64_t count;
  std::array<std::int64_t, 3> shape;
  TestIntegers starts;
  TestMatrix x, y, w;
};

TEST_P(CudaExperts, GroupedLinearAndItsGradients) {
  for (const auto& g : groups)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
      SCOPED_TRACE(g.in);
      TestGroups t(dtype(), g);
      ops::grouped_linear_backward_input(host_stream(), t.x.host(), t.y.host(),
                                         t.w.host().reshape(t.shape), t.starts.host(), accumulate);
      ops::cuda::grouped_linear_backward_input(device_stream(), t.x.device(), t.y.device(),
                                               t.w.device().reshape(t.shape), t.starts.device(),
                                               accumulate);
      t.x.expect_equal(near(), "dx");
      TestGroups f(dtype(), g);
      ops::grouped_linear(host_stream(), f.y.host(), f.x.host(), f.w.host().reshape(f.shape),
                          f.starts.host(), accumulate);
      ops::cuda::grouped_linear(device_stream(), f.y.device(), f.x.device(),
                                f.w.device().reshape(f.shape), f.starts.device(), accumulate);
      f.y.expect_equal(near(), "y");
    }
}

TEST_P(CudaExperts, GroupedLinearBackwardWeight) {
  for (const auto result : {DType::f32, DType::bf16})
    for (const auto& g : groups)
      for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
        SCOPED_TRACE(g.in);
        TestGroups t(dtype(), g);
        TestMatrix dw(result, t.count * g.out, g.in);
        const auto on_device = [&] {
          ops::cuda::grouped_linear_backward_weight(device_stream(), dw.device().reshape(t.shape),
                                                    t.y.device(), t.x.device(), t.starts.device(),
                                                    accumulate);
          return dw.downloaded();
        };
        ops::grouped_linear_backward_weight(host_stream(), dw.host().reshape(t.shape), t.y.host(),
                                            t.x.host(), t.starts.host(), accumulate);
        const auto once = on_device();
        dw.expect_equal(tolerance(result), "dw");
        if (accumulate == Accumulate::yes) continue;
        EXPECT_TRUE(once == on_device()) << "run to run";
      }
}

TEST_P(CudaExperts, RowsOfOtherExpertsDoNotMatter) {
  TestGroups t(dtype(), {{0, 3, 10}, 16, 24, {}});
  for (std::int64_t c = 0; c < 16; ++c) t.x.set(3, c, std::nan(""));
  TestMatrix dw(DType::f32, 48, 16);
  ops::cuda::grouped_linear_backward_weight(device_stream(), dw.device().reshape(t.shape),
                                            t.y.device(), t.x.device(), t.starts.device(),
                                            Accumulate::no);
  ops::cuda::grouped_linear(device_stream(), t.y.device(), t.x.device(),
                            t.w.device().reshape(t.shape), t.starts.device(), Accumulate::no);
  std::vector<float> gradient(768);
  std::memcpy(gradient.data(), dw.downloaded().data(), gradient.size() * 4);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    ASSERT_EQ(std::isnan(gradient[i]), i >= gradient.size() / 2);
  const auto bytes = t.y.downloaded();
  for (std::size_t m = 0; m < 10; ++m) {
    float first = 0;
    if (dtype() == DType::f32) {
      std::memcpy(&first, bytes.data() + m * 24 * 4, 4);
    } else {
      bf16 number;
      std::memcpy(&number, bytes.data() + m * 24 * 2, 2);
      first = static_cast<float>(number);
    }
    EXPECT_EQ(std::isnan(first), m == 3);
  }
}

// --- Biases of experts ---

struct BiasedGroups {
  std::vector<std::int32_t> starts;
  std::int64_t cols;
  Place place;
};
// Rows with and without 16-byte alignment; experts without rows; blocks with one row and with
// several, and with rows of several experts; more columns than a block has threads.
const BiasedGroups biased_groups[] = {{{0, 0, 3, 5, 9, 9, 9, 80, 81}, 24, {}},
                                      {{0, 70, 70, 71, 100}, 70, {3, 1}},
                                      {{0, 0, 4, 500, 502, 502, 1100}, 8, {8, 8}},
                                      {{0, 2, 2, 3}, 2056, {0, 8}},
                                      {{0, 5}, 131, {}},
                                      {{0, 0, 0}, 16, {}}};

TEST_P(CudaExperts, GroupedBias) {
  for (const auto& [numbers, cols, place] : biased_groups)
    for (const auto bias : {DType::f32, DType::bf16})
      for (const auto& bias_place : {place, Place{3, 1}}) {
        SCOPED_TRACE(cols);
        TestIntegers starts(numbers);
        TestMatrix y(dtype(), numbers.back(), cols, place);
        TestMatrix b(bias, std::ssize(numbers) - 1, cols, bias_place);
        ops::grouped_bias(host_stream(), y.host(), b.host(), starts.host());
        ops::cuda::grouped_bias(device_stream(), y.device(), b.device(), starts.device());
        y.expect_equal(near(), "y");
      }
}

/// Tensors for one call.
struct TestBiasGradients {
  TestBiasGradients(DType dtype, DType result, const BiasedGroups& g, Place bias_place)
      : starts(g.starts),
        dy(dtype, g.starts.back(), g.cols, g.place),
        b(dtype, std::ssize(g.starts) - 1, g.cols, bias_place),
        db(result, std::ssize(g.starts) - 1, g.cols, g.place),
        weights(DType::f32, g.starts.back(), 1),
        dweights(DType::f32, g.starts.back(), 1) {}

  ops::GroupedBiasBackwardCall call(Tensor (TestMatrix::*side)(), Accumulate accumulate) {
    return {.dy = (dy.*side)(),
            .starts = side == &TestMatrix::host ? starts.host() : starts.device(),
            .weights = (weights.*side)(),
            .db = (db.*side)(),
            .accumulate = accumulate,
            .b = (b.*side)(),
            .dweights = (dweights.*side)()};
  }
  /// Calls change(call) before each side's call.
  template <class Change>
  void backward(Accumulate accumulate, const Change& change) {
    auto host = call(&TestMatrix::host, accumulate), device = call(&TestMatrix::device, accumulate);
    change(host);
    change(device);
    ops::grouped_bias_backward(host_stream(), host);
    ops::cuda::grouped_bias_backward(device_stream(), device);
  }
  void expect_equal(double near) {
    db.expect_equal(near, "db");
    dweights.expect_equal(4e-6, "dweights", std::sqrt(static_cast<double>(dy.host().cols())));
  }

  TestIntegers starts;
  TestMatrix dy, b, db, weights, dweights;
};

TEST_P(CudaExperts, GroupedBiasBackward) {
  for (const auto result : {DType::f32, DType::bf16})
    for (const auto& g : biased_groups)
      for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
        SCOPED_TRACE(g.cols);
        TestBiasGradients t(dtype(), result, g, g.place);
        t.backward(accumulate, [](auto&) {});
        t.expect_equal(tolerance(result));
        t.backward(accumulate, [](auto& call) { call.weights = {}; });
        t.expect_equal(tolerance(result));
      }
}

TEST_P(CudaExperts, GroupedBiasBackwardOfWhatIsWanted) {
  TestBiasGradients t(dtype(), DType::f32, biased_groups[0], {3, 1});
  const auto db = t.db.downloaded(), dweights = t.dweights.downloaded();
  t.backward(Accumulate::no, [](auto& call) { call.db = {}; });
  EXPECT_TRUE(t.db.downloaded() == db);
  EXPECT_FALSE(t.dweights.downloaded() == dweights);
  t.expect_equal(4e-6);
  const auto added = t.dweights.downloaded();
  t.backward(Accumulate::no, [](auto& call) { call.b = call.dweights = {}; });
  EXPECT_FALSE(t.db.downloaded() == db);
  EXPECT_TRUE(t.dweights.downloaded() == added);
  t.expect_equal(4e-6);
  const auto once = t.db.downloaded();
  t.backward(Accumulate::no, [](auto& call) { call.b = call.dweights = {}; });
  EXPECT_TRUE(t.db.downloaded() == once) << "run to run";
}

#ifdef LLAMESH_CUDA_EMULATED
// On a GPU this would make the device unusable for the process.
TEST_P(CudaExperts, RefuseWrongExpertsAndStarts) {
  EXPECT_ANY_THROW(TestOrder({0, 2}, 2));
  EXPECT_ANY_THROW(TestOrder({0, -1}, 2));
  for (const auto& starts : {std::vector<std::int32_t>{0, 2, 4}, {1, 2, 5}, {0, 6, 5}})
    for (const std::int64_t in : {8, 5}) {
      TestGroups t(dtype(), {{0, 2, 5}, in, 16, {}});
      TestIntegers wrong(starts);
      EXPECT_ANY_THROW(ops::cuda::grouped_linear(device_stream(), t.y.device(), t.x.device(),
                                                 t.w.device().reshape(t.shape), wrong.device(),
                                                 Accumulate::no));
      EXPECT_ANY_THROW(ops::cuda::grouped_linear_backward_weight(
          device_stream(), t.w.device().reshape(t.shape), t.y.device(), t.x.device(),
          wrong.device(), Accumulate::no));
    }
}

TEST(CudaExpertBiases, RefuseWrongStarts) {
  for (const auto& numbers : {std::vector<std::int32_t>{0, 2, 4}, {1, 2, 5}, {0, 6, 5}}) {
    TestIntegers starts(numbers);
    TestMatrix y(DType::f32, 5, 8), b(DType::f32, 2, 8), dweights(DType::f32, 5, 1);
    ops::GroupedBiasBackwardCall sums, dots;
    sums.dy = dots.dy = y.device();
    sums.starts = dots.starts = starts.device();
    sums.db = dots.b = b.device();
    dots.dweights = dweights.device();
    EXPECT_ANY_THROW(
        ops::cuda::grouped_bias(device_stream(), y.device(), b.device(), starts.device()));
    EXPECT_ANY_THROW(ops::cuda::grouped_bias_backward(device_stream(), sums));
    EXPECT_ANY_THROW(ops::cuda::grouped_bias_backward(device_stream(), dots));
  }
}
#endif

}  // namespace
}  // namespace llamesh::test
