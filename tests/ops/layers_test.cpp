#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

class Layers : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, Layers, ::testing::Values(DType::f32, DType::bf16), dtype_name);

struct LayerSizes {
  std::int64_t rows, cols;
};
const LayerSizes layer_sizes[] = {{1, 6}, {37, 50}, {130, 257}, {70, 64}};
const Accumulate both[] = {Accumulate::no, Accumulate::yes};
const Tensor none;

// --- Bias ---

TEST_P(Layers, BiasIsAddedToEveryRow) {
  for (const auto& [rows, cols] : layer_sizes) {
    const Matrix y(dtype(), rows, cols, 3), b(dtype(), 1, cols);
    auto expected = y.numbers();
    const auto bias = b.numbers();
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % bias.size()];
    ops::add_bias(stream, y, b);
    expect_near(y.numbers(), expected, near(), "y");
    EXPECT_TRUE(y.gaps_untouched());
  }
}

TEST_P(Layers, ColumnSumsAreSetOrAddedTo) {
  for (const auto& [rows, cols] : layer_sizes)
    for (const auto accumulate : both) {
      const Matrix dy(dtype(), rows, cols, 3), db(DType::f32, 1, cols);
      auto expected = db.numbers();
      if (accumulate == Accumulate::no) std::ranges::fill(expected, 0.0);
      const auto rows_of_dy = dy.numbers();
      for (std::size_t i = 0; i < rows_of_dy.size(); ++i)
        expected[i % expected.size()] += rows_of_dy[i];
      ops::column_sums(stream, db, dy, accumulate);
      expect_near(db.numbers(), expected, 1e-4, "db");
    }
}

// --- RMSNorm, with an offset on its weight ---

constexpr float offset = 0.5F;

reference::Numbers normed(const reference::Numbers& x, reference::Numbers w) {
  for (double& v : w) v += offset;
  return reference::rms_norm(x, w, 1e-5);
}

/// Computes y and inverse for the norm of x, or of x = x + delta.
void norm(device::Stream& stream, const Matrix& y, const Matrix& inverse, const Matrix& x,
          const Matrix& w, const Tensor& delta = {}) {
  ops::rms_norm(stream, {.x = x,
                         .delta = delta,
                         .sum = delta ? x.view() : none,
                         .w = w.view().reshape({w.view().cols()}),
                         .offset = offset,
                         .eps = 1e-5F,
                         .y = y,
                         .inverse = inverse});
}

void norm_backward(device::Stream& stream, const Matrix& dx, const Matrix& dw,
                   Accumulate accumulate, const Matrix& dy, const Matrix& x, const Matrix& inverse,
                   const Matrix& w) {
  ops::rms_norm_backward(stream, {.x = x,
                                  .w = w.view().reshape({w.view().cols()}),
                                  .offset = offset,
                                  .inverse = inverse,
                                  .dy = dy,
                                  .dx = dx,
                                  .accumulate_dx = accumulate,
                                  .dw = dw.view().reshape({w.view().cols()}),
                                  .accumulate_dw = accumulate});
}

TEST_P(Layers, RmsNormEqualsTheReference) {
  for (const auto& [rows, cols] : layer_sizes) {
    const Matrix x(dtype(), rows, cols, 3), w(dtype(), 1, cols), y(dtype(), rows, cols, 2);
    const Matrix inverse(DType::f32, 1, rows);
    norm(stream, y, inverse, x, w);
    expect_near(y.numbers(), normed(x.numbers(), w.numbers()), near(), "y");
    EXPECT_TRUE(y.gaps_untouched());
  }
}

TEST_P(Layers, RmsNormAddsTheResidualFirst) {
  for (const auto& [rows, cols] : layer_sizes) {
    const Matrix x(dtype(), rows, cols), delta(dtype(), rows, cols), w(dtype(), 1, cols);
    const Matrix y(dtype(), rows, cols), inverse(DType::f32, 1, rows);
    const auto expected = sum(x.numbers(), delta.numbers());
    norm(stream, y, inverse, x, w, delta);
    expect_near(x.numbers(), expected, near(), "sum, in place");
    expect_near(y.numbers(), normed(x.numbers(), w.numbers()), near(), "y");
  }
}

TEST_P(Layers, RmsNormBackwardIsFiniteDifferences) {
  for (const auto& [rows, cols] : {LayerSizes{1, 6}, LayerSizes{37, 18}})
    for (const auto accumulate : both) {
      const Matrix x(dtype(), rows, cols), w(dtype(), 1, cols), c(dtype(), rows, cols);
      const Matrix y(dtype(), rows, cols), inverse(DType::f32, 1, rows);
      const Matrix dx(dtype(), rows, cols), dw(DType::f32, 1, cols);
      const auto old_dx = dx.numbers(), old_dw = dw.numbers();
      norm(stream, y, inverse, x, w);
      norm_backward(stream, dx, dw, accumulate, c, x, inverse, w);
      const auto of_x = [&](const auto& v) { return normed(v, w.numbers()); };
      const auto of_w = [&](const auto& v) { return normed(x.numbers(), v); };
      auto slope_x = reference::numerical_gradient(of_x, x.numbers(), c.numbers());
      auto slope_w = reference::numerical_gradient(of_w, w.numbers(), c.numbers());
      if (accumulate == Accumulate::yes) {
        slope_x = sum(slope_x, old_dx);
        slope_w = sum(slope_w, old_dw);
      }
      expect_near(dx.numbers(), slope_x, near(), "dx");
      expect_near(dw.numbers(), slope_w, 1e-5, "dw");
    }
}

/// Returns columns [part * x.cols / parts, ...).
Tensor part_of(const Tensor& x, std::int64_t part, std::int64_t parts) {
  return x.slice_cols(part * x.cols() / parts, x.cols() / parts);
}

// Each rank has some columns in every row; every rank's norm uses all ranks' sums.
TEST_P(Layers, RmsNormOfColumnsEqualsThatOfRows) {
  for (const auto& [rows, cols] : {LayerSizes{1, 6}, LayerSizes{37, 54}, LayerSizes{130, 192}}) {
    const Matrix x(dtype(), rows, cols, 3), delta(dtype(), rows, cols), w(dtype(), 1, cols);
    const Matrix y(dtype(), rows, cols, 2), inverse(DType::f32, 1, rows), c(dtype(), rows, cols);
    const Matrix dx(dtype(), rows, cols), dw(DType::f32, 1, cols);
    const auto all = sum(x.numbers(), delta.numbers());
    const std::int64_t parts = 3;
    const Matrix sums(DType::f32, parts, rows), products(DType::f32, parts, rows);
    const auto own = [](const Matrix& m, std::int64_t p) {
      return m.view().slice_rows(p, 1).reshape({m.view().cols()});
    };
    const auto weight = [&](std::int64_t p) {
      return part_of(w, p, parts).reshape({cols / parts});
    };
    const auto call = [&](std::int64_t p) {
      return ops::RowNormCall{.x = part_of(x, p, parts),
                              .w = weight(p),
                              .offset = offset,
                              .eps = 1e-5F,
                              .y = part_of(y, p, parts),
                              .inverse = inverse.view().reshape({rows})};
    };
    const auto backward = [&](std::int64_t p) {
      return ops::RowNormBackwardCall{.x = part_of(x, p, parts),
                                      .w = weight(p),
                                      .offset = offset,
                                      .inverse = inverse.view().reshape({rows}),
                                      .dy = part_of(c, p, parts),
                                      .dx = part_of(dx, p, parts),
                                      .accumulate_dx = Accumulate::no,
                                      .dw = part_of(dw, p, parts).reshape({cols / parts}),
                                      .accumulate_dw = Accumulate::no};
    };
    for (std::int64_t p = 0; p < parts; ++p) {
      auto added = call(p);
      added.delta = part_of(delta, p, parts);
      added.sum = added.x;
      ops::rms_norm_row_sums(stream, added, own(sums, p));
    }
    expect_near(x.numbers(), all, near(), "sum, in place");
    for (std::int64_t p = 0; p < parts; ++p) {
      auto whole = call(p);
      whole.row_sums = sums;
      ops::rms_norm(stream, whole);
    }
    expect_near(y.numbers(), normed(x.numbers(), w.numbers()), near(), "y");
    for (std::int64_t p = 0; p < parts; ++p)
      ops::rms_norm_backward_row_sums(stream, backward(p), own(products, p));
    for (std::int64_t p = 0; p < parts; ++p) {
      auto whole = backward(p);
      whole.row_sums = products;
      ops::rms_norm_backward(stream, whole);
    }
    const Matrix expected_dx(dtype(), rows, cols), expected_dw(DType::f32, 1, cols);
    norm_backward(stream, expected_dx, expected_dw, Accumulate::no, c, x, inverse, w);
    expect_near(dx.numbers(), expected_dx.numbers(), near(), "dx");
    expect_near(dw.numbers(), expected_dw.numbers(), 1e-5, "dw");
    EXPECT_TRUE(x.gaps_untouched() && y.gaps_untouched());
  }
}

TEST_P(Layers, RmsNormBackwardDoesNotDependOnTheNumberOfThreads) {
  const std::int64_t rows = 333, cols = 70;
  const Matrix x(dtype(), rows, cols), w(dtype(), 1, cols), c(dtype(), rows, cols);
  const Matrix inverse(DType::f32, 1, rows, 0, 0.1), dx(dtype(), rows, cols), dw(dtype(), 1, cols);
  expect_same_for_any_threads(
      [&] { norm_backward(stream, dx, dw, Accumulate::no, c, x, inverse, w); },
      [&] { return std::pair(dx.bytes(), dw.bytes()); });
}

// --- Rotary embedding ---

TEST_P(Layers, RopeRotatesAndRotatesBack) {
  for (const std::int64_t head_dim : {6, 32, 80}) {
    const std::int64_t positions = 37, heads = 3;
    const Matrix x(dtype(), 2 * positions, heads * head_dim, 7);
    const Matrix cos_sin(DType::f32, positions, head_dim);
    for (const auto rotation : {ops::Rotation::forward, ops::Rotation::backward}) {
      const auto expected = reference::rope(x.numbers(), cos_sin.numbers(), 3,
                                            static_cast<reference::Index>(head_dim),
                                            rotation == ops::Rotation::forward ? 1.0 : -1.0);
      ops::rope(stream, x, cos_sin, Tensor(), {positions}, rotation);
      expect_near(x.numbers(), expected, near(), "x");
      EXPECT_TRUE(x.gaps_untouched());
    }
  }
}

TEST_P(Layers, RopeCountsPositionsFromTheStartOfADocument) {
  const std::int64_t positions = 9, head_dim = 6;
  const Integers starts({0, 0, 0, 3, 4, 4, 4, 4, 8, 0, 0, 0, 0, 0, 0, 0, 7, 7});
  const Matrix x(dtype(), 2 * positions, 2 * head_dim, 5);
  const Matrix cos_sin(DType::f32, positions, head_dim);
  const auto expected =
      reference::rope(x.numbers(), cos_sin.numbers(), 2, head_dim, 1.0, starts.numbers);
  ops::rope(stream, x, cos_sin, starts.tensor, {positions}, ops::Rotation::forward);
  expect_near(x.numbers(), expected, near(), "x");
  EXPECT_TRUE(x.gaps_untouched());
}

/// Two runs of a longer row, which begin within documents.
TEST_P(Layers, RopeOfTwoRunsIsThatOfTheirRow) {
  const std::int64_t head_dim = 6;
  const ops::RowPositions runs{6, 2, 8};
  const Integers starts({0, 0, 0, 0, 4, 4, 6, 6, 6, 6, 10, 10}), of_runs({0, 0, 4, 6, 6, 10});
  const Matrix whole(dtype(), 12, 2 * head_dim, 5), part(dtype(), 6, 2 * head_dim);
  const Matrix cos_sin(DType::f32, 12, head_dim);
  const auto rows = [&](std::int64_t i) { return whole.view().slice_rows(runs[i], 1); };
  for (std::int64_t i = 0; i < 6; ++i) ops::copy(stream, part.view().slice_rows(i, 1), rows(i));
  ops::rope(stream, whole, cos_sin, starts.tensor, {12}, ops::Rotation::forward);
  ops::rope(stream, part, cos_sin, of_runs.tensor, runs, ops::Rotation::forward);
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t c = 0; c < 2 * head_dim; ++c)
      EXPECT_EQ(part.get(i, c), whole.get(runs[i], c)) << "row " << i;
}

// Rotation is linear: its transpose is its gradient.
TEST(RopeReference, BackwardIsFiniteDifferences) {
  const Matrix x(DType::f32, 4, 12), c(DType::f32, 4, 12), cos_sin(DType::f32, 2, 6);
  const auto table = cos_sin.numbers();
  const auto of_x = [&](const auto& v) { return reference::rope(v, table, 2, 6, 1.0); };
  expect_near(reference::rope(c.numbers(), table, 2, 6, -1.0),
              reference::numerical_gradient(of_x, x.numbers(), c.numbers()), 1e-7, "dx");
}

// --- Activations ---

using enum ops::Activation;
constexpr ops::Activation all_activations[] = {swiglu, clamped_swiglu, geglu, gelu, squared_relu};

TEST_P(Layers, ActivationEqualsTheReferenceAndItsFiniteDifferences) {
  for (const auto kind : all_activations)
    for (const auto& [rows, cols] : {LayerSizes{1, 6}, LayerSizes{9, 21}}) {
      SCOPED_TRACE(static_cast<int>(kind));
      const auto inputs = ops::inputs_of(kind) * cols;
      const double spread = kind == clamped_swiglu ? 6.0 : 3.0;  // beyond the limits
      const Matrix x(dtype(), rows, inputs, 4, spread), y(dtype(), rows, cols, 1);
      const Matrix c(dtype(), rows, cols), again(dtype(), rows, cols, 1);
      const auto f = [kind, n = cols](const auto& v) {
        return reference::activate(v, static_cast<reference::Index>(n), kind);
      };
      const auto numbers = x.numbers();
      ops::activate(stream, y, x, kind);
      expect_near(y.numbers(), f(numbers), near(), "y");
      const Matrix same(dtype(), rows, inputs);
      ops::activate_backward(stream, same, {}, c, x, kind);
      ops::activate_backward(stream, x, again, c, x, kind);  // in place
      EXPECT_EQ(again.numbers(), y.numbers());
      EXPECT_EQ(same.numbers(), x.numbers());
      expect_near(x.numbers(), reference::numerical_gradient(f, numbers, c.numbers()), near(),
                  "dx");
      EXPECT_TRUE(x.gaps_untouched() && y.gaps_untouched() && again.gaps_untouched());
    }
}

TEST_P(Layers, ActivationOfHugeNumbersIsFinite) {
  for (const auto kind : all_activations) {
    SCOPED_TRACE(static_cast<int>(kind));
    const auto inputs = ops::inputs_of(kind) * 3;
    const Matrix y(dtype(), 1, 3), dx(dtype(), 1, inputs);
    Matrix x(dtype(), 1, inputs), dy(dtype(), 1, 3);
    const double numbers[] = {-256.0, 256.0, 0.0};
    for (std::int64_t i = 0; i < inputs; ++i) x.set(0, i, i < 3 ? numbers[i] : 1.0);
    for (std::int64_t i = 0; i < 3; ++i) dy.set(0, i, 1.0);
    ops::activate(stream, y, x, kind);
    const bool squares = kind == squared_relu, limited = kind == clamped_swiglu;
    const double highest = squares ? 65536.0 : limited ? 14 / (1 + std::exp(-7 * 1.702)) : 256.0;
    expect_near(y.numbers(), {0.0, highest, 0.0}, limited ? near() : 1e-6, "y");
    ops::activate_backward(stream, dx, {}, dy, x, kind);
    auto gradient = dx.numbers();
    gradient.resize(3);
    if (squares)
      expect_near(gradient, {0.0, 512.0, 0.0}, 1e-6, "dx");
    else if (limited)
      expect_near(gradient, {0.0, 0.0, 1.0}, 1e-6, "dx");
    else
      expect_near(gradient, {0.0, 1.0, 0.5}, 1e-6, "dx");
  }
}

TEST_P(Layers, ActivationRefusesOtherShapes) {
  const Matrix x(dtype(), 4, 12), y(dtype(), 4, 6);
  EXPECT_THROW(ops::activate(stream, y, x, ops::Activation::gelu), std::exception);
  EXPECT_THROW(ops::activate(stream, y, y, ops::Activation::geglu), std::exception);
  EXPECT_THROW(ops::activate_backward(stream, y, {}, y, x, ops::Activation::swiglu),
               std::exception);
}

// --- Cross-entropy ---

TEST_P(Layers, CrossEntropyEqualsTheReferenceAndItsFiniteDifferences) {
  for (const auto& [rows, cols] : {LayerSizes{1, 3}, LayerSizes{8, 33}, LayerSizes{3, 257}}) {
    auto tokens = random_tokens(rows, cols);
    if (rows > 2) tokens[1] = -1;
    const Integers targets(tokens);
    const Matrix logits(dtype(), rows, cols, 5, 4.0), losses(DType::f32, 1, rows);
    const auto numbers = logits.numbers();
    const auto f = [&](const auto& v) { return reference::cross_entropy(v, tokens); };
    ops::CrossEntropyCall call{
        .losses = losses.view(), .logits = logits, .targets = targets.tensor, .scale = 0.25F};
    ops::cross_entropy(stream, call);
    EXPECT_EQ(logits.numbers(), numbers);
    expect_near(losses.numbers(), f(numbers), 1e-6, "losses", 10.0);
    call.gradient = ops::WithGradient::yes;
    ops::cross_entropy(stream, call);
    expect_near(losses.numbers(), f(numbers), 1e-6, "losses", 10.0);
    const reference::Numbers scale(static_cast<std::size_t>(rows), 0.25);
    expect_near(logits.numbers(), reference::numerical_gradient(f, numbers, scale), near(), "dx",
                0.25);
    EXPECT_TRUE(logits.gaps_untouched());
  }
}

TEST_P(Layers, CrossEntropyOfCappedLogitsGivesTheGradientBeforeTheCap) {
  const std::int64_t rows = 8, cols = 33;
  const auto tokens = random_tokens(rows, cols);
  const Integers targets(tokens);
  const Matrix logits(DType::f32, rows, cols, 0, 40.0), losses(DType::f32, 1, rows);
  const auto numbers = logits.numbers();
  const auto f = [&](reference::Numbers v) {
    for (auto& x : v) x = 30.0 * std::tanh(x / 30.0);
    return reference::cross_entropy(v, tokens);
  };
  ops::softcap(stream, logits, 30.0F);
  ops::cross_entropy(stream, {.losses = losses.view(),
                              .logits = logits,
                              .targets = targets.tensor,
                              .gradient = ops::WithGradient::yes,
                              .scale = 0.25F,
                              .softcap = 30.0F});
  expect_near(losses.numbers(), f(numbers), 1e-6, "losses", 30.0);
  const reference::Numbers scale(static_cast<std::size_t>(rows), 0.25);
  expect_near(logits.numbers(), reference::numerical_gradient(f, numbers, scale), 1e-5, "dx", 0.25);
}

// Several chunks in the online sum, with the maximum in the first, a middle and the last one.
TEST_P(Layers, CrossEntropyOfALargeVocabulary) {
  const std::int64_t cols = 5003;
  for (const std::int64_t peak : {0, 2500, 5002}) {
    Matrix logits(dtype(), 1, cols, 0, 10.0);
    logits.set(0, peak, 90.0);
    const std::vector<std::int32_t> tokens{17};
    const Integers targets(tokens);
    const Matrix losses(DType::f32, 1, 1);
    const auto expected = reference::cross_entropy(logits.numbers(), tokens);
    ops::cross_entropy(stream, {.losses = losses.view(),
                                .logits = logits,
                                .targets = targets.tensor,
                                .gradient = ops::WithGradient::yes});
    expect_near(losses.numbers(), expected, 1e-6, "loss", 90.0);
    expect_near({logits.get(0, peak)}, {1.0}, near(), "gradient at the maximum");
  }
}

TEST_P(Layers, CrossEntropyIsNotANumberWhereALogitIsNot) {
  Matrix logits(dtype(), 1, 40);
  logits.set(0, 3, std::nan(""));
  const Integers targets({7});
  const Matrix losses(DType::f32, 1, 1);
  ops::cross_entropy(stream,
                     {.losses = losses.view(), .logits = logits, .targets = targets.tensor});
  EXPECT_TRUE(std::isnan(losses.get(0, 0)));
}

// --- Embedding ---

TEST_P(Layers, EmbeddingTakesRowsAndGivesTheirGradientsBack) {
  const std::int64_t vocabulary = 11, cols = 21, rows = 50;
  const auto tokens = random_tokens(rows, vocabulary - 1);  // the last row is never used
  const Integers indices(tokens);
  const Matrix table(dtype(), vocabulary, cols), out(dtype(), rows, cols);
  ops::embedding(stream, out, indices.tensor, table, 0, Accumulate::no);
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t c = 0; c < cols; ++c)
      ASSERT_EQ(out.get(m, c), table.get(tokens[static_cast<std::size_t>(m)], c));
  for (const auto result : {DType::f32, DType::bf16})
    for (const auto accumulate : both) {
      const Matrix dout(dtype(), rows, cols), dtable(result, vocabulary, cols);
      auto expected = dtable.numbers();
      if (accumulate == Accumulate::no) std::ranges::fill(expected, 0.0);
      for (std::int64_t m = 0; m < rows; ++m)
        for (std::int64_t c = 0; c < cols; ++c)
          expected[static_cast<std::size_t>(tokens[static_cast<std::size_t>(m)] * cols + c)] +=
              dout.get(m, c);
      ops::embedding_backward(stream, dtable, dout, indices.tensor, 0, accumulate);
      expect_near(dtable.numbers(), expected, tolerance(result), "dtable");
    }
}

}  // namespace
}  // namespace llamesh::test
