#include "random_tensor.hpp"

// LayerNorm, and RMSNorm per head. RMSNorm of whole rows: layers_test.cpp.

namespace llamesh::test {
namespace {

class Norms : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, Norms, ::testing::Values(DType::f32, DType::bf16), dtype_name);

constexpr double eps = 1e-5;
constexpr std::pair<std::int64_t, std::int64_t> sizes[] = {{1, 6}, {37, 18}, {130, 37}, {70, 64}};

Tensor vector_of(const Matrix& m) {
  return m.view().reshape({m.view().cols()});
}

/// Tensors of a LayerNorm and its backward pass.
struct LayerNorm {
  LayerNorm(DType dtype, std::int64_t rows, std::int64_t cols, DType gradients = DType::f32)
      : x(dtype, rows, cols, 3),
        w(dtype, 1, cols),
        b(dtype, 1, cols),
        y(dtype, rows, cols, 2),
        mean(DType::f32, 1, rows),
        inverse(DType::f32, 1, rows),
        dy(dtype, rows, cols, 1),
        dx(dtype, rows, cols, 2),
        dw(gradients, 1, cols),
        db(gradients, 1, cols) {}

  void forward(const Tensor& delta = {}) const {
    ops::layer_norm(device::compute_stream(), {.x = x,
                                               .delta = delta,
                                               .sum = delta ? x.view() : Tensor(),
                                               .w = vector_of(w),
                                               .offset = offset,
                                               .b = biased ? vector_of(b) : Tensor(),
                                               .eps = static_cast<float>(eps),
                                               .y = y,
                                               .mean = mean,
                                               .inverse = inverse});
  }
  void backward(Accumulate accumulate, const Tensor& to) const {
    ops::layer_norm_backward(device::compute_stream(), {.x = x,
                                                        .w = vector_of(w),
                                                        .offset = offset,
                                                        .mean = mean,
                                                        .inverse = inverse,
                                                        .dy = dy,
                                                        .dx = to,
                                                        .accumulate_dx = accumulate,
                                                        .dw = vector_of(dw),
                                                        .accumulate_dw = accumulate,
                                                        .db = biased ? vector_of(db) : Tensor(),
                                                        .accumulate_db = accumulate});
  }
  reference::Numbers expected() const {
    return reference::layer_norm(x.numbers(), w.numbers(), b.numbers(), eps);
  }

  bool biased = true;
  float offset = 0;
  Matrix x, w, b, y, mean, inverse, dy, dx, dw, db;
};

TEST_P(Norms, LayerNormEqualsTheReference) {
  for (const auto& [rows, cols] : sizes) {
    const LayerNorm norm(dtype(), rows, cols);
    norm.forward();
    expect_near(norm.y.numbers(), norm.expected(), near(), "y");
    EXPECT_TRUE(norm.y.gaps_untouched());
  }
}

TEST_P(Norms, LayerNormAddsTheResidualFirst) {
  for (const auto& [rows, cols] : sizes) {
    const LayerNorm norm(dtype(), rows, cols);
    const Matrix delta(dtype(), rows, cols);
    const auto sum_of = sum(norm.x.numbers(), delta.numbers());
    norm.forward(delta);
    expect_near(norm.x.numbers(), sum_of, near(), "sum, in place");
    expect_near(norm.y.numbers(), norm.expected(), near(), "y");
  }
}

// A mean far above the spread: the mean of squares less the square of the mean would cancel, and
// the rounding of the mean alone is a visible share of the spread.
TEST(LayerNorm, SurvivesAMeanFarFromZero) {
  for (const std::int64_t cols : {50, 4099}) {
    LayerNorm norm(DType::f32, 3, cols);
    for (std::int64_t r = 0; r < 3; ++r)
      for (std::int64_t c = 0; c < cols; ++c) norm.x.set(r, c, 1000.0 + 0.01 * norm.x.get(r, c));
    norm.forward();
    expect_near(norm.y.numbers(), norm.expected(), tolerance(DType::f32), "y");
  }
}

TEST_P(Norms, LayerNormOfEqualNumbersIsItsBias) {
  const std::int64_t cols = 4099;
  LayerNorm norm(dtype(), 1, cols);
  for (std::int64_t c = 0; c < cols; ++c) norm.x.set(0, c, 999.9);
  norm.forward();
  expect_near(norm.y.numbers(), norm.b.numbers(), 1e-6, "y");
}

TEST_P(Norms, LayerNormBackwardIsFiniteDifferences) {
  for (const auto accumulate : {Accumulate::no, Accumulate::yes})
    for (const auto& [rows, cols] : {std::pair(1, 6), std::pair(37, 18)}) {
      const LayerNorm n(dtype(), rows, cols);
      const auto x = n.x.numbers(), w = n.w.numbers(), b = n.b.numbers(), c = n.dy.numbers();
      const auto gradient = [&](const auto& f, const auto& at, const Matrix& old) {
        const auto slope = reference::numerical_gradient(f, at, c);
        return accumulate == Accumulate::yes ? sum(slope, old.numbers()) : slope;
      };
      using reference::layer_norm;
      const auto dx = gradient([&](auto& v) { return layer_norm(v, w, b, eps); }, x, n.dx);
      const auto dw = gradient([&](auto& v) { return layer_norm(x, v, b, eps); }, w, n.dw);
      const auto db = gradient([&](auto& v) { return layer_norm(x, w, v, eps); }, b, n.db);
      n.forward();
      n.backward(accumulate, n.dx);
      expect_near(n.dx.numbers(), dx, near(), "dx");
      expect_near(n.dw.numbers(), dw, 1e-5, "dw");
      expect_near(n.db.numbers(), db, 1e-5, "db");
      EXPECT_TRUE(n.dx.gaps_untouched());
    }
}

// As in Cohere's models (no bias) and Nemotron's (LayerNorm1p: 1 + w).
TEST_P(Norms, LayerNormTakesAnOffsetAndNeedsNoBias) {
  for (const bool biased : {false, true}) {
    LayerNorm n(dtype(), 37, 18);
    n.biased = biased;
    n.offset = 1;
    const auto x = n.x.numbers(), w = n.w.numbers(), c = n.dy.numbers(), old_db = n.db.numbers();
    auto b = n.b.numbers();
    if (!biased) std::ranges::fill(b, 0.0);
    const auto normed = [&](const auto& of, auto scale) {
      for (double& v : scale) v += 1;
      return reference::layer_norm(of, scale, b, eps);
    };
    n.forward();
    n.backward(Accumulate::no, n.dx);
    expect_near(n.y.numbers(), normed(x, w), near(), "y");
    using reference::numerical_gradient;
    const auto of_x = [&](const auto& v) { return normed(v, w); };
    const auto of_w = [&](const auto& v) { return normed(x, v); };
    expect_near(n.dx.numbers(), numerical_gradient(of_x, x, c), near(), "dx");
    expect_near(n.dw.numbers(), numerical_gradient(of_w, w, c), 1e-5, "dw");
    EXPECT_EQ(n.db.numbers() == old_db, !biased);
  }
}

TEST_P(Norms, LayerNormGradientsOfParametersAreOfAnyType) {
  for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
    const LayerNorm n(dtype(), 37, 50, DType::bf16);
    const auto old_dw = n.dw.numbers(), old_db = n.db.numbers();
    const auto x = n.x.numbers(), w = n.w.numbers(), b = n.b.numbers(), c = n.dy.numbers();
    const auto of_w = [&](const auto& v) { return reference::layer_norm(x, v, b, eps); };
    const auto of_b = [&](const auto& v) { return reference::layer_norm(x, w, v, eps); };
    auto dw = reference::numerical_gradient(of_w, w, c);
    auto db = reference::numerical_gradient(of_b, b, c);
    if (accumulate == Accumulate::yes) {
      dw = sum(dw, old_dw);
      db = sum(db, old_db);
    }
    n.forward();
    n.backward(accumulate, n.dx);
    expect_near(n.dw.numbers(), dw, tolerance(DType::bf16), "dw");
    expect_near(n.db.numbers(), db, tolerance(DType::bf16), "db");
  }
}

TEST_P(Norms, LayerNormBackwardDoesNotDependOnTheNumberOfThreads) {
  const LayerNorm n(dtype(), 333, 70);
  n.forward();
  expect_same_for_any_threads([&] { n.backward(Accumulate::no, n.dx); },
                              [&] { return std::tuple(n.dx.bytes(), n.dw.bytes(), n.db.bytes()); });
}

TEST_P(Norms, LayerNormBackwardInPlace) {
  const LayerNorm n(dtype(), 37, 50);
  n.forward();
  n.backward(Accumulate::no, n.dx);
  const auto expected = n.dx.numbers();
  n.backward(Accumulate::no, n.dy);
  EXPECT_EQ(n.dy.numbers(), expected);
}

// --- RMSNorm per head: G groups of D columns in every row, with one weight ---

struct HeadNorm {
  HeadNorm(DType dtype, std::int64_t rows, std::int64_t groups, std::int64_t cols)
      : x(dtype, rows, groups * cols, 5),
        w(dtype, 1, cols),
        y(dtype, rows, groups * cols, 3),
        inverse(DType::f32, rows, groups),
        dy(dtype, rows, groups * cols, 4),
        dx(dtype, rows, groups * cols, 1),
        dw(DType::f32, 1, cols) {}

  void forward() const {
    ops::rms_norm(
        device::compute_stream(),
        {.x = x, .w = vector_of(w), .eps = static_cast<float>(eps), .y = y, .inverse = inverse});
  }
  void backward(const Tensor& to, Accumulate accumulate = Accumulate::no,
                const Tensor& row_sums = {}) const {
    ops::rms_norm_backward(device::compute_stream(), {.x = x,
                                                      .w = vector_of(w),
                                                      .inverse = inverse,
                                                      .dy = dy,
                                                      .dx = to,
                                                      .accumulate_dx = accumulate,
                                                      .dw = vector_of(dw),
                                                      .accumulate_dw = accumulate,
                                                      .row_sums = row_sums});
  }

  Matrix x, w, y, inverse, dy, dx, dw;
};

TEST_P(Norms, EveryHeadIsNormalizedByItself) {
  for (const auto& [rows, groups, cols] :
       {std::tuple(1, 1, 6), std::tuple(5, 7, 6), std::tuple(13, 3, 37)}) {
    const HeadNorm n(dtype(), rows, groups, cols);
    n.forward();
    // The reference's rows are groups.
    const auto x = n.x.numbers(), w = n.w.numbers(), c = n.dy.numbers();
    expect_near(n.y.numbers(), reference::rms_norm(x, w, eps), near(), "y");
    n.backward(n.dx);
    using reference::numerical_gradient;
    const auto of_x = [&](const auto& v) { return reference::rms_norm(v, w, eps); };
    const auto of_w = [&](const auto& v) { return reference::rms_norm(x, v, eps); };
    if (rows < 13) expect_near(n.dx.numbers(), numerical_gradient(of_x, x, c), near(), "dx");
    expect_near(n.dw.numbers(), numerical_gradient(of_w, w, c), 2e-5, "dw");
    EXPECT_TRUE(n.y.gaps_untouched() && n.dx.gaps_untouched());
    const auto expected = n.dx.numbers();
    n.backward(n.dy);
    EXPECT_EQ(n.dy.numbers(), expected);
  }
}

TEST_P(Norms, GradientsOfHeadsAreAdded) {
  const HeadNorm n(dtype(), 5, 7, 6);
  n.forward();
  const auto old_dx = n.dx.numbers(), old_dw = n.dw.numbers();
  n.backward(n.dx, Accumulate::yes);
  const auto dx = n.dx.numbers(), dw = n.dw.numbers();
  n.backward(n.dx);
  expect_near(dx, sum(old_dx, n.dx.numbers()), 2.0 * near(), "dx");
  expect_near(dw, sum(old_dw, n.dw.numbers()), 1e-5, "dw");
}

TEST_P(Norms, HeadsThatDoNotFitAreRefused) {
  const HeadNorm n(dtype(), 4, 3, 6);
  const Matrix weight(dtype(), 1, 5), row_sums(DType::f32, 2, 4);
  const ops::RowNormCall call{
      .x = n.x, .w = vector_of(n.w), .eps = 1e-5F, .y = n.y, .inverse = n.inverse};
  auto misfit = call, with_delta = call, with_sums = call;
  misfit.w = vector_of(weight);
  with_delta.delta = n.dy;
  with_delta.sum = n.x;
  with_sums.row_sums = row_sums;
  auto with_mean = call, with_bias = call;
  with_mean.mean = n.inverse;
  with_bias.b = vector_of(n.w);
  for (const auto& wrong : {misfit, with_delta, with_sums, with_mean, with_bias})
    EXPECT_THROW(ops::rms_norm(stream, wrong), std::exception);
  EXPECT_THROW(n.backward(n.dx, Accumulate::no, row_sums), std::exception);
}

// Row sums may be columns of a wider matrix.
TEST_P(Norms, RowSumsMayBeStrided) {
  const HeadNorm n(dtype(), 9, 1, 14);
  const Matrix sums(DType::f32, 2, 9, 4);
  Matrix dense(DType::f32, 2, 9);
  for (std::int64_t t = 0; t < 2; ++t)
    for (std::int64_t m = 0; m < 9; ++m) dense.set(t, m, std::abs(sums.get(t, m)) + 1.0);
  ops::copy(stream, sums, dense);
  const auto norm = [&](const Tensor& row_sums) {
    ops::rms_norm(stream, {.x = n.x,
                           .w = vector_of(n.w),
                           .eps = 1e-5F,
                           .y = n.y,
                           .inverse = n.inverse,
                           .row_sums = row_sums});
    n.backward(n.dx, Accumulate::no, row_sums);
    return std::pair(n.y.numbers(), n.dx.numbers());
  };
  EXPECT_EQ(norm(sums), norm(dense));
}

}  // namespace
}  // namespace llamesh::test
