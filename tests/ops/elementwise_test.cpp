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
    EXPECT_NEAR(ops::sum_of_squares(stream, x), expected, 1e-13 * expected);
    double result = 0.0;
    expect_same_for_any_threads([&] { result = ops::sum_of_squares(stream, x); },
                                [&] { return result; });
  }
}

TEST(Elementwise, RunsOnAWorkerThread) {
  auto worker = device::Stream::worker();
  const Matrix x(DType::f32, 1, 70003), y(DType::bf16, 1, 70003);
  ops::copy(worker, y, x);
  ops::add(worker, y, x);
  const auto squares = ops::sum_of_squares(worker, x);
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

}  // namespace
}  // namespace llamesh::test
