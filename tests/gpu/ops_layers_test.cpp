#include "test_matrix.hpp"

namespace llamesh::test {
namespace {

class CudaLayers : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaLayers, ::testing::Values(DType::f32, DType::bf16), dtype_name);

constexpr Accumulate both[] = {Accumulate::no, Accumulate::yes};

/// Rows with and without 16-byte alignment; column counts below, at and above one block iteration.
struct LayerSizes {
  std::int64_t rows, cols;
  Place place;
};
const LayerSizes layer_sizes[] = {{1, 6, {}},         {37, 50, {3, 0}}, {13, 257, {}},
                                  {70, 64, {8, 0}},   {5, 1032, {}},    {3, 64, {0, 1}},
                                  {600, 24, {16, 0}}, {2, 18432, {}},   {3, 4096, {8, 8}}};

// --- Bias ---

TEST_P(CudaLayers, Bias) {
  for (const auto& [rows, cols, place] : layer_sizes) {
    SCOPED_TRACE(cols);
    TestMatrix y(dtype(), rows, cols, place);
    for (const auto bias : {DType::f32, DType::bf16}) {
      TestMatrix b(bias, 1, cols);
      ops::add_bias(host_stream(), y.host(), b.host());
      ops::cuda::add_bias(device_stream(), y.device(), b.device());
      y.expect_equal(near(), "y");
    }
    for (const auto accumulate : both) {
      TestMatrix db(DType::f32, 1, cols);
      ops::column_sums(host_stream(), db.host(), y.host(), accumulate);
      ops::cuda::column_sums(device_stream(), db.device(), y.device(), accumulate);
      db.expect_equal(1e-4, "db");
    }
  }
}

// --- RMSNorm ---

/// Computes y and inverse for the norm of x, or of x = x + delta, on both sides.
void norm(TestMatrix& y, TestMatrix& inverse, TestMatrix& x, TestMatrix& w,
          TestMatrix* delta = nullptr) {
  const auto on = [&](Tensor (TestMatrix::*side)()) {
    return ops::RowNormCall{.x = (x.*side)(),
                            .delta = delta ? (delta->*side)() : Tensor(),
                            .sum = delta ? (x.*side)() : Tensor(),
                            .w = (w.*side)(),
                            .offset = 0.5F,
                            .eps = 1e-5F,
                            .y = (y.*side)(),
                            .inverse = (inverse.*side)()};
  };
  ops::rms_norm(host_stream(), on(&TestMatrix::host));
  ops::cuda::rms_norm(device_stream(), on(&TestMatrix::device));
}

void norm_backward(TestMatrix& dx, TestMatrix& dw, Accumulate accumulate, TestMatrix& dy,
                   TestMatrix& x, TestMatrix& inverse, TestMatrix& w) {
  const auto on = [&](Tensor (TestMatrix::*side)()) {
    return ops::RowNormBackwardCall{.x = (x.*side)(),
                                    .w = (w.*side)(),
                                    .offset = 0.5F,
                                    .inverse = (inverse.*side)(),
                                    .dy = (dy.*side)(),
                                    .dx = (dx.*side)(),
                                    .accumulate_dx = accumulate,
                                    .dw = (dw.*side)(),
                                    .accumulate_dw = accumulate};
  };
  ops::rms_norm_backward(host_stream(), on(&TestMatrix::host));
  ops::cuda::rms_norm_backward(device_stream(), on(&TestMatrix::device));
}

TEST_P(CudaLayers, RmsNorm) {
  for (const auto& [rows, cols, place] : layer_sizes) {
    SCOPED_TRACE(cols);
    TestMatrix x(dtype(), rows, cols, place), w(dtype(), 1, cols), y(dtype(), rows, cols, place);
    TestMatrix inverse(DType::f32, 1, rows);
    norm(y, inverse, x, w);
    y.expect_equal(near(), "y");
    inverse.expect_equal(1e-5, "inverse");
    x.expect_equal(0.0, "x");
  }
}

TEST_P(CudaLayers, RmsNormAddsTheResidualFirst) {
  for (const auto& [rows, cols, place] : layer_sizes) {
    SCOPED_TRACE(cols);
    TestMatrix x(dtype(), rows, cols, place), delta(dtype(), rows, cols, place),
        w(dtype(), 1, cols);
    TestMatrix y(dtype(), rows, cols, place), inverse(DType::f32, 1, rows);
    norm(y, inverse, x, w, &delta);
    x.expect_equal(0.0, "sum, in place");
    y.expect_equal(near(), "y");
    inverse.expect_equal(1e-5, "inverse");
  }
}

// Row sums shared with other ranks: two ranks, of which this one is the first.
TEST_P(CudaLayers, RmsNormOfColumns) {
  for (const auto& [rows, cols, place] : layer_sizes) {
    SCOPED_TRACE(cols);
    TestMatrix x(dtype(), rows, cols, place), delta(dtype(), rows, cols, place),
        w(dtype(), 1, cols);
    TestMatrix y(dtype(), rows, cols, place), inverse(DType::f32, 1, rows),
        dy(dtype(), rows, cols, place);
    TestMatrix sums(DType::f32, 1, rows), products(DType::f32, 1, rows),
        all(DType::f32, 2, rows, {3, 0});
    TestMatrix dx(dtype(), rows, cols, place), dw(DType::f32, 1, cols);
    for (std::int64_t row = 0; row < 2 * rows; ++row)  // sums of squares
      all.set(row / rows, row % rows, 1.0 + static_cast<double>(row % 7));
    const auto forward = [&](Tensor (TestMatrix::*side)()) {
      return ops::RowNormCall{.x = (x.*side)(),
                              .w = (w.*side)(),
                              .offset = 0.5F,
                              .eps = 1e-5F,
                              .y = (y.*side)(),
                              .inverse = (inverse.*side)()};
    };
    const auto added = [&](Tensor (TestMatrix::*side)()) {
      auto call = forward(side);
      call.delta = (delta.*side)();
      call.sum = (x.*side)();
      return call;
    };
    ops::rms_norm_row_sums(host_stream(), added(&TestMatrix::host), sums.host());
    ops::cuda::rms_norm_row_sums(device_stream(), added(&TestMatrix::device), sums.device());
    x.expect_equal(0.0, "sum, in place");
    sums.expect_equal(1e-4, "sums of squares");
    const auto normed = [&](Tensor (TestMatrix::*side)()) {
      auto call = forward(side);
      call.row_sums = (all.*side)();
      return call;
    };
    ops::rms_norm(host_stream(), normed(&TestMatrix::host));
    ops::cuda::rms_norm(device_stream(), normed(&TestMatrix::device));
    y.expect_equal(near(), "y");
    const auto backward = [&](Tensor (TestMatrix::*side)()) {
      return ops::RowNormBackwardCall{.x = (x.*side)(),
                                      .w = (w.*side)(),
                                      .offset = 0.5F,
                                      .inverse = (inverse.*side)(),
                                      .dy = (dy.*side)(),
                                      .dx = (dx.*side)(),
                                      .accumulate_dx = Accumulate::no,
                                      .dw = (dw.*side)(),
                                      .accumulate_dw = Accumulate::no,
                                      .row_sums = (all.*side)()};
    };
    ops::rms_norm_backward_row_sums(host_stream(), backward(&TestMatrix::host), products.host());
    ops::cuda::rms_norm_backward_row_sums(device_stream(), backward(&TestMatrix::device),
                                          products.device());
    products.expect_equal(1e-4, "products");
    ops::rms_norm_backward(host_stream(), backward(&TestMatrix::host));
    ops::cuda::rms_norm_backward(device_stream(), backward(&TestMatrix::device));
    dx.expect_equal(near(), "dx");
    dw.expect_equal(1e-4, "dw");
  }
}

TEST_P(CudaLayers, RmsNormBackward) {
  for (const auto& [rows, cols, place] : layer_sizes)
    for (const auto accumulate : both)
      for (const auto result : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(cols);
        TestMatrix x(dtype(), rows, cols, place), dy(dtype(), rows, cols, place),
            w(dtype(), 1, cols);
        TestMatrix y(dtype(), rows, cols), dx(dtype(), rows, cols, place), dw(result, 1, cols);
        TestMatrix inverse(DType::f32, 1, rows);
        norm(y, inverse, x, w);
        norm_backward(dx, dw, accumulate, dy, x, inverse, w);
        dx.expect_equal(near(), "dx");
        dw.expect_equal(result == DType::f32 ? 1e-5 : tolerance(result), "dw");
        if (accumulate == Accumulate::yes) continue;
        norm_backward(dy, dw, accumulate, dy, x, inverse, w);
        EXPECT_TRUE(dy.downloaded() == dx.downloaded()) << "in place";
      }
}

// More rows than blocks, and rows longer than a warp, kept in registers or not: a block continues
// with its next row.
TEST_P(CudaLayers, RmsNormBackwardOfManyRows) {
  for (const std::int64_t cols : {1032, 301}) {
    SCOPED_TRACE(cols);
    TestMatrix x(dtype(), 530, cols), dy(dtype(), 530, cols), w(dtype(), 1, cols);
    TestMatrix dx(dtype(), 530, cols), dw(DType::f32, 1, cols), inverse(DType::f32, 1, 530);
    norm_backward(dx, dw, Accumulate::no, dy, x, inverse, w);
    dx.expect_equal(near(), "dx");
    dw.expect_equal(1e-5, "dw");
  }
}

// --- Rotary embedding ---

TEST_P(CudaLayers, Rope) {
  for (const std::int64_t head_dim : {6, 32, 80, 128})
    for (const auto rotation : {ops::Rotation::forward, ops::Rotation::backward})
      for (const auto gap : {std::int64_t{7}, std::int64_t{16}}) {
        SCOPED_TRACE(head_dim);
        TestMatrix x(dtype(), 74, 3 * head_dim, {gap, 0}), cos_sin(DType::f32, 37, head_dim);
        ops::rope(host_stream(), x.host(), cos_sin.host(), {}, {37}, rotation);
        ops::cuda::rope(device_stream(), x.device(), cos_sin.device(), {}, {37}, rotation);
        x.expect_equal(near(), "x");
      }
}

TEST_P(CudaLayers, RopeCountsPositionsFromTheStartOfADocument) {
  TestIntegers starts({0, 0, 0, 3, 4, 4, 4, 4, 8, 0, 0, 0, 0, 0, 0, 0, 7, 7});
  TestMatrix x(dtype(), 18, 64, {8, 0}), cos_sin(DType::f32, 9, 32);
  ops::rope(host_stream(), x.host(), cos_sin.host(), starts.host(), {9}, ops::Rotation::forward);
  ops::cuda::rope(device_stream(), x.device(), cos_sin.device(), starts.device(), {9},
                  ops::Rotation::forward);
  x.expect_equal(near(), "x");
}

// --- Activations ---

constexpr ops::Activation all_activations[] = {
    ops::Activation::swiglu, ops::Activation::clamped_swiglu, ops::Activation::geglu,
    ops::Activation::gelu, ops::Activation::squared_relu};

TEST_P(CudaLayers, ActivationAndItsGradientInPlace) {
  for (const auto kind : all_activations)
    for (const auto& [rows, cols, place] : layer_sizes) {
      if (cols > 5000) continue;
      SCOPED_TRACE(fmt::format("activation {}, {} columns", static_cast<int>(kind), cols));
      const auto inputs = ops::inputs_of(kind) * cols;
      // Many inputs of clamped_swiglu are beyond its limits, and many are not.
      const double spread = kind == ops::Activation::clamped_swiglu ? 6.0 : 3.0;
      TestMatrix x(dtype(), rows, inputs, place, spread), y(dtype(), rows, cols, place);
      TestMatrix dy(dtype(), rows, cols, place), again(dtype(), rows, cols, place);
      ops::activate(host_stream(), y.host(), x.host(), kind);
      ops::cuda::activate(device_stream(), y.device(), x.device(), kind);
      y.expect_equal(near(), "y");
      TestMatrix alone(dtype(), rows, inputs, place);
      ops::activate_backward(host_stream(), alone.host(), {}, dy.host(), x.host(), kind);
      ops::cuda::activate_backward(device_stream(), alone.device(), {}, dy.device(), x.device(),
                                   kind);
      alone.expect_equal(near(), "dx without the forward's result");
      ops::activate_backward(host_stream(), x.host(), again.host(), dy.host(), x.host(), kind);
      ops::cuda::activate_backward(device_stream(), x.device(), again.device(), dy.device(),
                                   x.device(), kind);
      x.expect_equal(near(), "dx");
      again.expect_equal(near(), "y again");
      EXPECT_TRUE(again.downloaded() == y.downloaded());
    }
}

TEST_P(CudaLayers, ActivationOfHugeNumbersIsFinite) {
  for (const auto kind : all_activations) {
    const auto inputs = ops::inputs_of(kind) * 2;
    TestMatrix y(dtype(), 1, 2), x(dtype(), 1, inputs);
    const double numbers[] = {-200.0, 200.0, 3.0, 2.0};
    for (std::int64_t i = 0; i < inputs; ++i) x.set(0, i, numbers[i]);
    ops::activate(host_stream(), y.host(), x.host(), kind);
    ops::cuda::activate(device_stream(), y.device(), x.device(), kind);
    y.expect_equal(1e-6, "y");
  }
}

TEST_P(CudaLayers, XieluAndItsGradientInPlace) {
  for (const auto& [rows, cols, place] : layer_sizes)
    for (const auto accumulate : both) {
      SCOPED_TRACE(cols);
      TestMatrix x(dtype(), rows, cols, place, 3.0), y(dtype(), rows, cols, place);
      TestMatrix dy(dtype(), rows, cols, place), again(dtype(), rows, cols, place);
      TestMatrix alpha_p(dtype(), 1, 1), alpha_n(dtype(), 1, 1);
      TestMatrix d_alpha_p(DType::f32, 1, 1), d_alpha_n(DType::f32, 1, 1);
      const auto call = [&](Tensor (TestMatrix::*side)(), TestMatrix& out) {
        return ops::XieluCall{.out = (out.*side)(),
                              .x = (x.*side)(),
                              .alpha_p = (alpha_p.*side)(),
                              .alpha_n = (alpha_n.*side)()};
      };
      const auto gradients = [&](Tensor (TestMatrix::*side)()) {
        return ops::XieluGradients{.dout = (dy.*side)(),
                                   .dx = (x.*side)(),
                                   .d_alpha_p = (d_alpha_p.*side)(),
                                   .d_alpha_n = (d_alpha_n.*side)(),
                                   .accumulate_p = accumulate};
      };
      ops::xielu(host_stream(), call(&TestMatrix::host, y));
      ops::cuda::xielu(device_stream(), call(&TestMatrix::device, y));
      y.expect_equal(near(), "y");
      ops::xielu_backward(host_stream(), call(&TestMatrix::host, again),
                          gradients(&TestMatrix::host));
      ops::cuda::xielu_backward(device_stream(), call(&TestMatrix::device, again),
                                gradients(&TestMatrix::device));
      x.expect_equal(near(), "dx");
      again.expect_equal(near(), "y again");
      EXPECT_TRUE(again.downloaded() == y.downloaded());
      const auto many = std::sqrt(static_cast<double>(rows * cols));
      d_alpha_p.expect_equal(1e-4, "d_alpha_p", many);
      d_alpha_n.expect_equal(1e-4, "d_alpha_n", many);
    }
}

}  // namespace
}  // namespace llamesh::test
