#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

using reference::Index;
using reference::product;

struct Sizes {
  std::int64_t m, in, out, gap;
};
const Sizes all_sizes[] = {{1, 6, 3, 0}, {37, 64, 257, 5}, {64, 96, 48, 32}, {130, 18, 33, 1}};

class Linear : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, Linear, ::testing::Values(DType::f32, DType::bf16), dtype_name);

Index unsigned_of(std::int64_t n) {
  return static_cast<Index>(n);
}

/// The result of a kernel that overwrites or adds, against the product.
void check(const Matrix& result, const reference::Numbers& before, const reference::Numbers& exact,
           Accumulate accumulate, const char* what) {
  const auto expected = accumulate == Accumulate::yes ? sum(before, exact) : exact;
  // The reference reads the rounded inputs, so only the result's own rounding is left.
  expect_near(result.numbers(), expected, tolerance(result.view().dtype()), what);
  EXPECT_TRUE(result.gaps_untouched()) << what;
}

TEST_P(Linear, ForwardIsXTimesWTransposed) {
  for (const auto& s : all_sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const auto result : {DType::f32, DType::bf16}) {
        const Matrix x(dtype(), s.m, s.in, s.gap), w(dtype(), s.out, s.in);
        const Matrix y(result, s.m, s.out, s.gap);
        const auto before = y.numbers();
        ops::linear(stream, y, x, w, accumulate);
        check(y, before,
              product(x.numbers(), false, w.numbers(), true, unsigned_of(s.m), unsigned_of(s.out),
                      unsigned_of(s.in)),
              accumulate, "y");
      }
}

TEST_P(Linear, InputGradientIsDyTimesW) {
  for (const auto& s : all_sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
      const Matrix dy(dtype(), s.m, s.out, s.gap), w(dtype(), s.out, s.in);
      const Matrix dx(dtype(), s.m, s.in, s.gap);
      const auto before = dx.numbers();
      ops::linear_backward_input(stream, dx, dy, w, accumulate);
      check(dx, before,
            product(dy.numbers(), false, w.numbers(), false, unsigned_of(s.m), unsigned_of(s.in),
                    unsigned_of(s.out)),
            accumulate, "dx");
    }
}

TEST_P(Linear, WeightGradientIsDyTransposedTimesX) {
  for (const auto& s : all_sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const auto result : {DType::f32, DType::bf16}) {
        const Matrix dy(dtype(), s.m, s.out, s.gap), x(dtype(), s.m, s.in, s.gap);
        const Matrix dw(result, s.out, s.in);
        const auto before = dw.numbers();
        ops::linear_backward_weight(stream, dw, dy, x, accumulate);
        check(dw, before,
              product(dy.numbers(), true, x.numbers(), false, unsigned_of(s.out), unsigned_of(s.in),
                      unsigned_of(s.m)),
              accumulate, "dw");
      }
}

// The loss L = sum(c * y) has dL/dy = c; dx and dw must be its finite differences.
TEST_P(Linear, GradientsAreFiniteDifferences) {
  const std::int64_t m = 3, in = 6, out = 5;
  const Matrix x(dtype(), m, in), w(dtype(), out, in), c(dtype(), m, out);
  const Matrix dx(DType::f32, m, in), dw(DType::f32, out, in);
  ops::linear_backward_input(stream, dx, c, w, Accumulate::no);
  ops::linear_backward_weight(stream, dw, c, x, Accumulate::no);
  const auto of_x = [&](const auto& v) { return product(v, false, w.numbers(), true, 3, 5, 6); };
  const auto of_w = [&](const auto& v) { return product(x.numbers(), false, v, true, 3, 5, 6); };
  expect_near(dx.numbers(), reference::numerical_gradient(of_x, x.numbers(), c.numbers()), 1e-5,
              "dx");
  expect_near(dw.numbers(), reference::numerical_gradient(of_w, w.numbers(), c.numbers()), 1e-5,
              "dw");
}

TEST_P(Linear, RefusesShapesThatDoNotFit) {
  const Matrix x(dtype(), 4, 6), w(dtype(), 5, 7), y(dtype(), 4, 5);
  EXPECT_THROW(ops::linear(stream, y, x, w), std::exception);
}

TEST(InstructionSet, HasAName) {
  EXPECT_GT(std::string(ops::instruction_set()).size(), 2U);
}

}  // namespace
}  // namespace llamesh::test
