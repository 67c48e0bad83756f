#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "core/philox.hpp"
#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

// Shorter than a vector, and longer than a thread's block with a tail.
const std::int64_t all_sizes[] = {1, 7, 1000, 70003};

device::Stream main_stream() {
  return device::Stream::calling_thread();
}

TEST(Elementwise, CopyAndAddCastBetweenTypes) {
  auto stream = main_stream();
  for (const auto n : all_sizes)
    for (const auto to : {DType::f32, DType::bf16})
      for (const auto from : {DType::f32, DType::bf16}) {
        const Matrix x(from, 1, n), y(to, 1, n);
        const auto expected = sum(x.numbers(), y.numbers());
        ops::add(stream, y, x);
        expect_near(y.numbers(), expected, tolerance(to), "add");
        ops::copy(stream, y, x);
        expect_near(y.numbers(), x.numbers(), to == from ? 0.0 : tolerance(to), "copy");
      }
}

TEST(Elementwise, CastToBf16RoundsAsItsConstructorDoes) {
  auto stream = main_stream();
  const std::int64_t n = 4099;
  Matrix x(DType::f32, 1, n, 0, 1e-3), y(DType::bf16, 1, n);
  const double special[] = {0.0, -0.0, 1e-40, 3.4e38, 1.00390625, 1.01171875, HUGE_VAL};
  for (std::int64_t i = 0; i < 7; ++i) x.set(0, i, special[i]);
  x.view().as<float>()[7] = std::nanf("");
  ops::copy(stream, y, x);
  for (std::int64_t i = 0; i < n; ++i)
    ASSERT_EQ(y.view().as<bf16>()[i].bits, bf16(x.view().as<float>()[i]).bits) << i;
}

TEST(Elementwise, FillAndScale) {
  auto stream = main_stream();
  for (const auto n : all_sizes)
    for (const auto dtype : {DType::f32, DType::bf16}) {
      const Matrix x(dtype, 1, n);
      auto expected = x.numbers();
      for (auto& v : expected) v *= -0.37F;
      ops::scale(stream, x, -0.37F);
      expect_near(x.numbers(), expected, tolerance(dtype), "scale");
      for (auto& v : expected) v = 0.3 * std::tanh(v / 0.3);
      ops::softcap(stream, x, 0.3F);
      expect_near(x.numbers(), expected, 2.0 * tolerance(dtype), "softcap");
      ops::fill(stream, x, 1.5F);
      expect_near(x.numbers(), reference::Numbers(expected.size(), 1.5), 0.0, "fill");
    }
}

TEST(Elementwise, SumOfSquaresIsExactToDoublesAndToTheBitForAnyThreads) {
  auto stream = main_stream();
  for (const auto n : all_sizes) {
    const Matrix x(DType::f32, 1, n);
    double expected = 0.0;
    for (const auto v : x.numbers()) expected += v * v;
    EXPECT_NEAR(ops::sum_of_squares(stream, {x}), expected, 1e-13 * expected);
    double result = 0.0;
    expect_same_for_any_threads([&] { result = ops::sum_of_squares(stream, {x}); },
                                [&] { return result; });
  }
}

TEST(Elementwise, SquareUnitsAreTheSameInAnyOrderAndDivision) {
  auto stream = main_stream();
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (const int magnitude : {-140, -60, 0, 60}) {
    std::vector<float> x(100'003);
    // From numbers that vanish beside the largest to that one.
    for (auto& v : x)
      v = static_cast<float>(
          std::ldexp(normal(random), magnitude - static_cast<int>(random() % 10)));
    const auto view = [&] { return Tensor(x.data(), DType::f32, {std::ssize(x)}); };
    const float largest = ops::largest_magnitude(stream, view());
    EXPECT_EQ(largest,
              std::abs(*std::ranges::max_element(x, {}, [](float v) { return std::abs(v); })));
    const int exponent = ops::SquareUnits::exponent_above(largest);
    const auto whole = ops::square_units(stream, view(), exponent);
    double expected = 0;
    for (const double v : x) expected += v * v;
    EXPECT_NEAR(whole.value(exponent), expected, 1e-13 * expected);
    std::ranges::shuffle(x, random);
    ops::SquareUnits parts;
    for (std::int64_t first = 0, count = 0; first < std::ssize(x); first += count) {
      count = std::min<std::int64_t>(1 + static_cast<std::int64_t>(random() % 40'000),
                                     std::ssize(x) - first);
      parts += ops::square_units(stream, view().slice(first, count), exponent);
    }
    EXPECT_EQ(parts, whole) << "seed 5, magnitude " << magnitude;
  }
}

TEST(Elementwise, HashesTellElementsApartByNumberAndBits) {
  auto stream = main_stream();
  constexpr std::int64_t rows = 250, cols = 301, stride = 1000;  // more than a block
  constexpr std::uint64_t first = 77;
  for (const auto dtype : {DType::f32, DType::bf16}) {
    Matrix x(dtype, rows, cols);
    const auto bits = [&](std::int64_t r, std::int64_t c) {
      return std::bit_cast<std::uint32_t>(static_cast<float>(x.get(r, c)));
    };
    std::uint64_t expected = 0, in_turn = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        const auto number = first + static_cast<std::uint64_t>(r * stride + c);
        expected += ops::hash_of_element(number, bits(r, c));
        in_turn += ops::hash_of_element(static_cast<std::uint64_t>(r * cols + c), bits(r, c));
      }
    const Tensor all = Tensor(x).reshape({rows * cols});
    EXPECT_EQ(ops::hash_elements(stream, all, {first, cols, stride}), expected);
    EXPECT_EQ(ops::hash_elements(stream, all, {0, rows * cols, 0}), in_turn);
    EXPECT_EQ(ops::hash_elements(stream, all.slice(0, 0), {first, cols, stride}), 0U);
  }
}

TEST(Elementwise, LargestMagnitudeHidesNoNaN) {
  auto stream = main_stream();
  for (const auto n : all_sizes) {
    const Matrix x(DType::f32, 1, n);
    const Tensor all = x;
    for (const float odd : {-std::numeric_limits<float>::infinity(), -std::nanf("")}) {
      all.as<float>()[n / 2] = odd;
      const auto largest = ops::largest_magnitude(stream, x);
      EXPECT_TRUE(std::isnan(odd) ? std::isnan(largest) : largest == -odd);
    }
  }
  EXPECT_EQ(ops::largest_magnitude(stream, Tensor(nullptr, DType::f32, {0})), 0.0F);
}

TEST(Elementwise, RunsOnAWorkerThread) {
  auto worker = device::Stream::worker();
  const Matrix x(DType::f32, 1, 70003), y(DType::bf16, 1, 70003);
  ops::copy(worker, y, x);
  ops::add(worker, y, x);
  const auto squares = ops::sum_of_squares(worker, {x});
  auto expected = x.numbers();
  double total = 0.0;
  for (auto& v : expected) {
    total += v * v;
    v *= 2.0;
  }
  expect_near(y.numbers(), expected, 2.0 * tolerance(DType::bf16), "y");
  EXPECT_NEAR(squares, total, 1e-13 * total);
}

/// torch.optim.AdamW (_single_tensor_adamw) in double, one parameter at a time.
struct TorchAdamw {
  ops::AdamwStep step;
  void operator()(double& p, double& m, double& v, double g) const {
    const double slope = g * step.gradient_scale;
    p *= 1.0 - step.lr * step.weight_decay;
    m += (slope - m) * (1.0 - step.beta1);
    v = v * step.beta2 + slope * slope * (1.0 - step.beta2);
    p -= step.lr / step.correction1 * m / (std::sqrt(v) / std::sqrt(step.correction2) + step.eps);
  }
};

TEST(Optimizers, AdamwIsTorchs) {
  auto stream = main_stream();
  const std::int64_t n = 20011;
  // With beta2 = 0.9999 rounded to fp32, 1 - beta2 has a relative error of 1.7e-4.
  for (const auto& [beta1, beta2] : {std::pair{0.9, 0.95}, {0.999, 0.9999}}) {
    const Matrix p(DType::f32, 1, n), m(DType::f32, 1, n, 0, 0.0), v(DType::f32, 1, n, 0, 0.0);
    const Matrix copy(DType::bf16, 1, n), cast(DType::bf16, 1, n);
    auto p0 = p.numbers(), m0 = m.numbers(), v0 = v.numbers();
    for (int t = 1; t <= 5; ++t) {
      const Matrix g(DType::f32, 1, n);
      const ops::AdamwStep step{.lr = 3e-3,
                                .beta1 = beta1,
                                .beta2 = beta2,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .correction1 = 1.0 - std::pow(beta1, t),
                                .correction2 = 1.0 - std::pow(beta2, t),
                                .gradient_scale = 0.5};
      ops::adamw(stream, {p, m, v, g, t == 1 ? Tensor() : copy}, step);
      const auto slopes = g.numbers();
      for (std::size_t i = 0; i < p0.size(); ++i) TorchAdamw{step}(p0[i], m0[i], v0[i], slopes[i]);
    }
    expect_near(p.numbers(), p0, 2e-6, "parameter");
    expect_near(m.numbers(), m0, 2e-6, "exp_avg");
    expect_near(v.numbers(), v0, 2e-6, "exp_avg_sq");
    ops::copy(stream, cast, p);
    EXPECT_EQ(copy.bytes(), cast.bytes());
  }
}

/// Returns the neighbors of x in bf16, towards zero and away from it.
std::pair<float, float> neighbors(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x) & 0xffff0000U;
  return {std::bit_cast<float>(bits), std::bit_cast<float>(bits + 0x10000U)};
}

/// Runs one AdamW step on moments of zero in `dtype`, whose new values are then slope (1 - beta).
struct MomentsAfterAStep {
  MomentsAfterAStep(DType dtype, const Matrix& g, const ops::RoundingBits& bits,
                    std::int64_t first = 0)
      : m(dtype, 1, g.view().numel() - first, 0, 0.0),
        v(dtype, 1, g.view().numel() - first, 0, 0.0) {
    const auto n = m.view().numel();
    const Matrix p(DType::f32, 1, n);
    auto stream = main_stream();
    ops::adamw(stream, {p, m, v, g.view().slice(first, n), {}, bits},
               {1e-3, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 1.0});
  }
  Matrix m, v;
};

// By hand: the words of core/philox in the documented order.
TEST(Optimizers, Bf16MomentsAreRoundedByTheirElementsWords) {
  const std::int64_t n = 9001;
  const Matrix g(DType::f32, 1, n);
  // A part of columns 5 ... 41 in rows of 120, from the third row's element 7 on.
  const ops::RoundingBits bits{0x123456789abcdefU, 0xfedcba987654321U, 2 * 120 + 5, 7, 37, 120};
  const MomentsAfterAStep exact(DType::f32, g, bits), rounded(DType::bf16, g, bits);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto element = bits.origin + (7 + i) / 37 * 120 + (7 + i) % 37;
    const auto word =
        philox(bits.key, bits.stream,
               static_cast<std::uint64_t>(element / 4))[static_cast<std::size_t>(element % 4)];
    const auto expected = [&](float x, std::uint32_t random) {
      return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) + random) >> 16U);
    };
    ASSERT_EQ(rounded.m.view().as<bf16>()[i].bits,
              expected(exact.m.view().as<float>()[i], word & 0xffffU))
        << i;
    ASSERT_EQ(rounded.v.view().as<bf16>()[i].bits,
              expected(exact.v.view().as<float>()[i], word >> 16U))
        << i;
  }
}

TEST(Optimizers, Bf16MomentsDependOnTheElementNotOnTheCall) {
  const std::int64_t n = 20011, first = 7777;
  const Matrix g(DType::f32, 1, n);
  const ops::RoundingBits bits{1, 2, 0, 0, n, n};
  auto later = bits;
  later.begin = first;
  const MomentsAfterAStep whole(DType::bf16, g, bits), part(DType::bf16, g, later, first);
  for (std::int64_t i = 0; i < n - first; ++i) {
    ASSERT_EQ(part.m.view().as<bf16>()[i].bits, whole.m.view().as<bf16>()[first + i].bits);
    ASSERT_EQ(part.v.view().as<bf16>()[i].bits, whole.v.view().as<bf16>()[first + i].bits);
  }
}

// The sum of n errors, each uniform in variance at most gap^2 / 4, is within 5 standard deviations
// of 0. Rounding to nearest or down fails for a constant.
TEST(Optimizers, RoundingOfBf16MomentsIsUnbiased) {
  const std::int64_t n = 1 << 15;
  auto stream = main_stream();
  for (const float value : {1.0F, -0.37F, 3.1e-5F}) {
    const Matrix g(DType::f32, 1, n);
    ops::fill(stream, g, value);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const ops::RoundingBits bits{step, 99, 0, 0, n, n};
      const MomentsAfterAStep exact(DType::f32, g, bits), rounded(DType::bf16, g, bits);
      for (const auto& [fine, coarse] : {std::pair(&exact.m, &rounded.m), {&exact.v, &rounded.v}}) {
        const float x = fine->view().as<float>()[0];
        const auto [below, above] = neighbors(x);
        double sum = 0;
        for (const double y : coarse->numbers()) {
          ASSERT_TRUE(y == below || y == above) << x;
          sum += y - x;
        }
        const double up = (x - below) / (above - below);  // probability
        const double deviation = std::abs(above - below) * std::sqrt(up * (1 - up) * n);
        EXPECT_LE(std::abs(sum), 5 * deviation) << x;
      }
    }
  }
}

TEST(Optimizers, Bf16MomentsKeepInfinitiesAndNaNs) {
  Matrix g(DType::f32, 1, 64);
  g.view().as<float>()[3] = HUGE_VALF;
  g.view().as<float>()[50] = std::nanf("");
  const MomentsAfterAStep after(DType::bf16, g, {1, 2, 0, 0, 64, 64});
  EXPECT_TRUE(std::isinf(after.m.numbers()[3]));
  EXPECT_TRUE(std::isnan(after.m.numbers()[50]));
  EXPECT_TRUE(std::isnan(after.v.numbers()[50]));
}

TEST(Optimizers, TheQuadraticReadsLowerTrianglesAndIsSymmetric) {
  auto stream = main_stream();
  for (const std::int64_t k : {1, 7, 32, 33, 100}) {
    const Matrix x(DType::f32, k, k), squared(DType::f32, k, k);
    const auto x0 = x.numbers(), squared0 = squared.numbers();
    ops::matrix_quadratic(stream, squared, x, 3.0F, -4.0F, 2.0F);
    reference::Numbers expected(x0.size());
    for (std::int64_t r = 0; r < k; ++r)
      for (std::int64_t c = 0; c < k; ++c) {
        const auto lower = static_cast<std::size_t>(std::max(r, c) * k + std::min(r, c));
        expected[static_cast<std::size_t>(r * k + c)] =
            (r == c ? 3.0 : 0.0) - 4.0 * x0[lower] + 2.0 * squared0[lower];
      }
    expect_near(squared.numbers(), expected, 1e-6, "quadratic");
  }
}

TEST(Optimizers, SgdIsTorchs) {
  auto stream = main_stream();
  const std::int64_t n = 1003;
  const Matrix p(DType::f32, 1, n), b(DType::f32, 1, n, 0, 0.0);
  const Matrix copy(DType::bf16, 1, n), cast(DType::bf16, 1, n);
  auto p0 = p.numbers(), b0 = b.numbers();
  for (int t = 0; t < 3; ++t) {
    const Matrix g(DType::f32, 1, n);
    ops::sgd(stream, {p, b, g, t == 0 ? Tensor() : copy}, {0.1F, 0.9F, 0.01F, 0.5F});
    const auto slopes = g.numbers();
    for (std::size_t i = 0; i < p0.size(); ++i) {
      b0[i] = 0.9 * b0[i] + 0.5 * slopes[i] + 0.01 * p0[i];
      p0[i] -= 0.1 * b0[i];
    }
  }
  expect_near(p.numbers(), p0, 2e-6, "parameter");
  expect_near(b.numbers(), b0, 2e-6, "momentum");
  ops::copy(stream, cast, p);
  EXPECT_EQ(copy.bytes(), cast.bytes());
}

TEST(Optimizers, OuterStepsAreTorchsNesterov) {
  auto stream = main_stream();
  const std::int64_t n = 1003;
  for (const bool has_momentum : {true, false}) {
    const Matrix outer(DType::f32, 1, n), momentum(DType::f32, 1, n, 0, 0.0);
    const Matrix p(DType::f32, 1, n), difference(DType::f32, 1, n);
    const Matrix copy(DType::bf16, 1, n), cast(DType::bf16, 1, n);
    auto w0 = outer.numbers(), m0 = momentum.numbers(), p0 = p.numbers();
    for (int t = 0; t < 3; ++t) {
      ops::scaled_difference(stream, difference, outer, p, 0.5F);
      const auto d = difference.numbers();
      for (std::size_t i = 0; i < d.size(); ++i) EXPECT_NEAR(d[i], 0.5 * (w0[i] - p0[i]), 1e-6);
      ops::outer_step(stream,
                      {.outer = outer,
                       .momentum = has_momentum ? Tensor(momentum) : Tensor(),
                       .difference = difference,
                       .parameter = p,
                       .copy = t == 0 ? Tensor() : Tensor(copy)},
                      {.lr = 0.7F, .momentum = 0.9F, .local_share = 0.25F});
      for (std::size_t i = 0; i < w0.size(); ++i) {
        if (has_momentum) m0[i] = 0.9 * m0[i] + d[i];
        w0[i] -= 0.7 * (d[i] + (has_momentum ? 0.9 * m0[i] : 0));
        p0[i] = 0.75 * w0[i] + 0.25 * p0[i];
      }
    }
    expect_near(outer.numbers(), w0, 2e-6, "outer weights");
    expect_near(momentum.numbers(), m0, 2e-6, "momentum");
    expect_near(p.numbers(), p0, 2e-6, "parameter");
    ops::copy(stream, cast, p);
    EXPECT_EQ(copy.bytes(), cast.bytes());
  }
}

// Nothing of the replica's own remains, to the bit.
TEST(Optimizers, AnOuterStepWithoutLocalShareSetsTheOuterWeights) {
  auto stream = main_stream();
  const Matrix outer(DType::f32, 1, 99), difference(DType::f32, 1, 99), p(DType::f32, 1, 99);
  ops::outer_step(stream, {.outer = outer, .difference = difference, .parameter = p},
                  {.lr = 0.3F, .momentum = 0, .local_share = 0});
  EXPECT_EQ(p.bytes(), outer.bytes());
}

}  // namespace
}  // namespace llamesh::test
