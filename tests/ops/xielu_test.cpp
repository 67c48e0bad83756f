#include <cmath>

#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

using reference::Index;
using reference::Numbers;

class Xielu : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, Xielu, ::testing::Values(DType::f32, DType::bf16), dtype_name);

/// transformers' XIELUActivation, for numbers followed by alpha_p and alpha_n.
Numbers xielu_of(const Numbers& numbers_and_alphas) {
  const auto softplus = [](double a) { return std::log1p(std::exp(a)); };
  Numbers y(numbers_and_alphas.begin(), numbers_and_alphas.end() - 2);
  const auto p = softplus(*(numbers_and_alphas.end() - 2)),
             n = 0.5 + softplus(numbers_and_alphas.back());
  for (auto& x : y) x = 0.5 * x + (x > 0 ? p * x * x : n * (std::expm1(std::min(x, -1e-6)) - x));
  return y;
}

TEST_P(Xielu, EqualsTheReferenceAndItsFiniteDifferences) {
  struct Sizes {
    std::int64_t rows, cols;
  };
  for (const auto& [rows, cols] : {Sizes{1, 6}, Sizes{9, 21}, Sizes{150, 5}}) {
    const Matrix x(dtype(), rows, cols, 4, 3.0), y(dtype(), rows, cols, 1), dy(dtype(), rows, cols);
    const Matrix again(dtype(), rows, cols, 1), alpha_p(dtype(), 1, 1), alpha_n(dtype(), 1, 1);
    Matrix d_alpha_p(DType::f32, 1, 1), d_alpha_n(DType::f32, 1, 1);
    d_alpha_n.set(0, 0, 2.0);
    auto all = x.numbers();
    all.push_back(alpha_p.get(0, 0));
    all.push_back(alpha_n.get(0, 0));
    ops::XieluCall call{.out = y, .x = x, .alpha_p = alpha_p, .alpha_n = alpha_n};
    ops::xielu(stream, call);
    expect_near(y.numbers(), xielu_of(all), near(), "y");
    call.out = again;
    ops::xielu_backward(stream, call,
                        {.dout = dy,
                         .dx = x,  // in place
                         .d_alpha_p = d_alpha_p,
                         .d_alpha_n = d_alpha_n,
                         .accumulate_n = Accumulate::yes});
    EXPECT_EQ(again.numbers(), y.numbers());
    auto expected = reference::numerical_gradient(xielu_of, all, dy.numbers());
    const auto d_n = expected.back() + 2.0;
    expected.pop_back();
    expect_near(d_alpha_p.numbers(), {expected.back()}, 1e-5, "d_alpha_p");
    expect_near(d_alpha_n.numbers(), {d_n}, 1e-5, "d_alpha_n");
    expected.pop_back();
    expect_near(x.numbers(), expected, near(), "dx");
    EXPECT_TRUE(x.gaps_untouched() && y.gaps_untouched() && again.gaps_untouched());
  }
}

/// exp(x) - 1 - x loses its digits near 0 if it is computed as written.
TEST(XieluInFp32, IsExactNearZeroAndFiniteFarFromIt) {
  auto& stream = device::compute_stream();
  Matrix x(DType::f32, 1, 7), alpha(DType::f32, 1, 1);
  const Matrix y(DType::f32, 1, 7);
  alpha.set(0, 0, 30.0);
  const double numbers[] = {-1e-3, -0.02, -0.49, -0.51, -5e-5, -300.0, 1e15};
  for (std::int64_t i = 0; i < 7; ++i) x.set(0, i, numbers[i]);
  ops::xielu(stream, {.out = y, .x = x, .alpha_p = alpha, .alpha_n = alpha});
  auto all = x.numbers();
  all.insert(all.end(), {30.0, 30.0});
  const auto expected = xielu_of(all);
  for (Index i = 0; i < 7; ++i) EXPECT_NEAR(y.numbers()[i] / expected[i], 1, 1e-6) << numbers[i];
}

}  // namespace
}  // namespace llamesh::test
