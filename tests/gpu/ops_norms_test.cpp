#include "test_matrix.hpp"

// LayerNorm and RMSNorm per head. RMSNorm of whole rows: ops_layers_test.cpp.

namespace llamesh::test {
namespace {

class CudaNorms : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaNorms, ::testing::Values(DType::f32, DType::bf16), dtype_name);

/// Rows with and without 16-byte alignment; column counts below, at and above one block iteration.
struct NormSizes {
  std::int64_t rows, cols;
  Place place;
};
const NormSizes norm_sizes[] = {{1, 6, {}},    {37, 50, {3, 0}},   {13, 257, {}}, {70, 64, {8, 0}},
                                {5, 1032, {}}, {600, 24, {16, 0}}, {2, 4104, {}}, {3, 64, {0, 1}}};

Tensor vector_of(const Tensor& m) {
  return m.reshape({m.cols()});
}

struct LayerNorm {
  LayerNorm(DType dtype, const NormSizes& s)
      : x(dtype, s.rows, s.cols, s.place),
        delta(dtype, s.rows, s.cols, s.place),
        w(dtype, 1, s.cols),
        b(dtype, 1, s.cols),
        y(dtype, s.rows, s.cols, s.place),
        mean(DType::f32, 1, s.rows),
        inverse(DType::f32, 1, s.rows),
        dy(dtype, s.rows, s.cols, s.place),
        dx(dtype, s.rows, s.cols, s.place),
        dw(DType::f32, 1, s.cols),
        db(DType::f32, 1, s.cols) {}

  void forward(bool adds) {
    const auto call = [&](Tensor (TestMatrix::*side)()) {
      return ops::RowNormCall{.x = (x.*side)(),
                              .delta = adds ? (delta.*side)() : Tensor(),
                              .sum = adds ? (x.*side)() : Tensor(),
                              .w = vector_of((w.*side)()),
                              .offset = offset,
                              .b = biased ? vector_of((b.*side)()) : Tensor(),
                              .eps = 1e-5F,
                              .y = (y.*side)(),
                              .mean = (mean.*side)(),
                              .inverse = (inverse.*side)()};
    };
    ops::layer_norm(host_stream(), call(&TestMatrix::host));
    ops::cuda::layer_norm(device_stream(), call(&TestMatrix::device));
  }
  void backward(Accumulate accumulate, TestMatrix& to) {
    const auto call = [&](Tensor (TestMatrix::*side)()) {
      return ops::RowNormBackwardCall{.x = (x.*side)(),
                                      .w = vector_of((w.*side)()),
                                      .offset = offset,
                                      .mean = (mean.*side)(),
                                      .inverse = (inverse.*side)(),
                                      .dy = (dy.*side)(),
                                      .dx = (to.*side)(),
                                      .accumulate_dx = accumulate,
                                      .dw = vector_of((dw.*side)()),
                                      .accumulate_dw = accumulate,
                                      .db = biased ? vector_of((db.*side)()) : Tensor(),
                                      .accumulate_db = accumulate};
    };
    ops::layer_norm_backward(host_stream(), call(&TestMatrix::host));
    ops::cuda::layer_norm_backward(device_stream(), call(&TestMatrix::device));
  }

  bool biased = true;
  float offset = 0;
  TestMatrix x, delta, w, b, y, mean, inverse, dy, dx, dw, db;
};

TEST_P(CudaNorms, LayerNorm) {
  for (const auto& sizes : norm_sizes)
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(sizes.cols);
      LayerNorm n(dtype(), sizes);
      n.forward(adds);
      n.x.expect_equal(0.0, "x or the sum in place");
      n.y.expect_equal(near(), "y");
      n.mean.expect_equal(1e-5, "mean", 1.0);
      n.inverse.expect_equal(1e-5, "inverse");
    }
}

TEST_P(CudaNorms, LayerNormBackward) {
  for (const auto& sizes : norm_sizes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
      SCOPED_TRACE(sizes.cols);
      LayerNorm n(dtype(), sizes);
      n.forward(false);
      n.backward(accumulate, n.dx);
      n.dx.expect_equal(2.0 * near(), "dx", 1.0);
      n.dw.expect_equal(2e-4, "dw", 1.0);
      n.db.expect_equal(2e-4, "db", 1.0);
      if (accumulate == Accumulate::yes) continue;
      n.backward(accumulate, n.dy);
      EXPECT_TRUE(n.dy.downloaded() == n.dx.downloaded()) << "in place";
    }
}

TEST_P(CudaNorms, LayerNormWithAnOffsetAndNoBias) {
  for (const auto& sizes : {NormSizes{37, 50, {3, 0}}, NormSizes{70, 64, {8, 0}}}) {
    LayerNorm n(dtype(), sizes);
    n.biased = false;
    n.offset = 1;
    n.forward(false);
    n.y.expect_equal(near(), "y");
    n.backward(Accumulate::no, n.dx);
    n.dx.expect_equal(2.0 * near(), "dx", 1.0);
    n.dw.expect_equal(2e-4, "dw", 1.0);
  }
}

// A mean far above the spread: see tests/ops/norms_test.cpp.
TEST(CudaLayerNorm, SurvivesAMeanFarFromZero) {
  for (const std::int64_t cols : {50, 1032}) {
    LayerNorm n(DType::f32, {2, cols, {}});
    for (std::int64_t r = 0; r < 2; ++r)
      for (std::int64_t c = 0; c < cols; ++c) n.x.set(r, c, 1000.0 + 0.01 * n.x.get(r, c));
    n.forward(false);
    n.y.expect_equal(tolerance(DType::f32), "y");
  }
}

/// G groups of D columns per row.
struct HeadSizes {
  std::int64_t rows, groups, cols, gap;
};

TEST_P(CudaNorms, RmsNormPerHead) {
  for (const auto& [rows, groups, cols, gap] :
       {HeadSizes{5, 7, 6, 3}, HeadSizes{13, 3, 64, 8}, HeadSizes{300, 4, 128, 0},
        HeadSizes{3, 2, 520, 8}}) {
    SCOPED_TRACE(cols);
    TestMatrix x(dtype(), rows, groups * cols, {gap, 0}), y(dtype(), rows, groups * cols, {gap, 0});
    TestMatrix dy(dtype(), rows, groups * cols, {gap, 0}), w(dtype(), 1, cols);
    TestMatrix inverse(DType::f32, rows, groups), dw(DType::f32, 1, cols);
    const auto forward = [&](Tensor (TestMatrix::*side)()) {
      return ops::RowNormCall{.x = (x.*side)(),
                              .w = vector_of((w.*side)()),
                              .offset = 0.5F,
                              .eps = 1e-5F,
                              .y = (y.*side)(),
                              .inverse = (inverse.*side)()};
    };
    ops::rms_norm(host_stream(), forward(&TestMatrix::host));
    ops::cuda::rms_norm(device_stream(), forward(&TestMatrix::device));
    y.expect_equal(near(), "y");
    inverse.expect_equal(1e-5, "inverse");
    TestMatrix dx(dtype(), rows, groups * cols, {gap, 0});
    const auto backward = [&](TestMatrix& to, Accumulate accumulate) {
      const auto on = [&](Tensor (TestMatrix::*side)()) {
        return ops::RowNormBackwardCall{.x = (x.*side)(),
                                        .w = vector_of((w.*side)()),
                                        .offset = 0.5F,
                                        .inverse = (inverse.*side)(),
                                        .dy = (dy.*side)(),
                                        .dx = (to.*side)(),
                                        .accumulate_dx = accumulate,
                                        .dw = vector_of((dw.*side)()),
                                        .accumulate_dw = accumulate};
      };
      ops::rms_norm_backward(host_stream(), on(&TestMatrix::host));
      ops::cuda::rms_norm_backward(device_stream(), on(&TestMatrix::device));
      to.expect_equal(2.0 * near(), "dx", 1.0);
      dw.expect_equal(2e-4, "dw", 1.0);
    };
    backward(dx, Accumulate::yes);
    backward(dx, Accumulate::no);
    backward(dy, Accumulate::no);
    EXPECT_TRUE(dy.downloaded() == dx.downloaded()) << "in place";
  }
}

}  // namespace
}  // namespace llamesh::test
