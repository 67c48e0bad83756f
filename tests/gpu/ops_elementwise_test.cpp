#include "test_matrix.hpp"

namespace llamesh::test {
namespace {

constexpr std::int64_t all_counts[] = {1, 7, 8, 64, 1000, 9001};
constexpr DType both_types[] = {DType::f32, DType::bf16};
/// Aligned, and at an offset that does not allow 16-byte loads.
constexpr Place both_places[] = {{0, 0}, {0, 1}};

TEST(CudaElementwise, CopyAndAddCast) {
  for (const auto count : all_counts)
    for (const auto to : both_types)
      for (const auto from : both_types)
        for (const auto place : both_places) {
          SCOPED_TRACE(count);
          TestMatrix y(to, 1, count), x(from, 1, count, place);
          ops::copy(host_stream(), y.host(), x.host());
          ops::cuda::copy(device_stream(), y.device(), x.device());
          y.expect_equal(0.0, "copy");
          TestMatrix z(to, 1, count, place);
          ops::add(host_stream(), z.host(), x.host());
          ops::cuda::add(device_stream(), z.device(), x.device());
          z.expect_equal(0.0, "add");
        }
}

TEST(CudaElementwise, FillAndScale) {
  for (const auto count : all_counts)
    for (const auto type : both_types)
      for (const auto place : both_places) {
        SCOPED_TRACE(count);
        TestMatrix y(type, 1, count, place);
        ops::scale(host_stream(), y.host(), -1.7F);
        ops::cuda::scale(device_stream(), y.device(), -1.7F);
        y.expect_equal(0.0, "scale");
        ops::softcap(host_stream(), y.host(), 2.0F);
        ops::cuda::softcap(device_stream(), y.device(), 2.0F);
        y.expect_equal(type == DType::f32 ? 1e-6 : 1e-2, "softcap");
        ops::fill(host_stream(), y.host(), 0.3F);
        ops::cuda::fill(device_stream(), y.device(), 0.3F);
        y.expect_equal(0.0, "fill");
      }
}

TEST(CudaElementwise, SumOfSquaresEqualsAPlainSum) {
  for (const auto count : all_counts)
    for (const auto place : both_places) {
      TestMatrix x(DType::f32, 1, count, place);
      double expected = 0.0;
      for (std::int64_t i = 0; i < count; ++i) expected += x.get(0, i) * x.get(0, i);
      const auto total = ops::cuda::sum_of_squares(device_stream(), {x.device()});
      EXPECT_NEAR(total, expected, 1e-12 * expected) << count << " elements, seed " << seed;
      EXPECT_EQ(total, ops::cuda::sum_of_squares(device_stream(), {x.device()})) << "run to run";
    }
  EXPECT_EQ(ops::cuda::sum_of_squares(device_stream(), {Tensor(nullptr, DType::f32, {0})}), 0.0);
}

TEST(CudaElementwise, SumOfSquaresHidesNoNaN) {
  TestMatrix x(DType::f32, 1, 5000);
  x.set(0, 4321, std::nan(""));
  EXPECT_TRUE(std::isnan(ops::cuda::sum_of_squares(device_stream(), {x.device()})));
}

TEST(CudaElementwise, SquareUnitsAreTheHosts) {
  for (const auto count : all_counts)
    for (const auto place : both_places) {
      TestMatrix x(DType::f32, 1, count, place);
      const float largest = ops::cuda::largest_magnitude(device_stream(), x.device());
      EXPECT_EQ(largest, ops::largest_magnitude(host_stream(), x.host()));
      const int exponent = ops::SquareUnits::exponent_above(largest);
      EXPECT_EQ(ops::cuda::square_units(device_stream(), x.device(), exponent),
                ops::square_units(host_stream(), x.host(), exponent))
          << count << " elements, seed " << seed;
    }
  const Tensor none(nullptr, DType::f32, {0});
  EXPECT_EQ(ops::cuda::largest_magnitude(device_stream(), none), 0.0F);
  EXPECT_EQ(ops::cuda::square_units(device_stream(), none, 0), ops::SquareUnits());
}

TEST(CudaElementwise, HashesAreTheHosts) {
  for (const auto dtype : {DType::f32, DType::bf16})
    for (const auto count : all_counts)
      for (const auto place : both_places) {
        TestMatrix x(dtype, 1, count, place);
        for (const auto& numbers : {ops::ElementNumbers{5, count, 0}, {1ULL << 40U, 7, 1000}})
          EXPECT_EQ(ops::cuda::hash_elements(device_stream(), x.device(), numbers),
                    ops::hash_elements(host_stream(), x.host(), numbers))
              << count << " elements, seed " << seed;
      }
  const Tensor none(nullptr, DType::f32, {0});
  EXPECT_EQ(ops::cuda::hash_elements(device_stream(), none, {}), 0U);
}

/// Checks that an optimizer's copy is the device's own parameter, rounded as by copy().
void expect_copied(TestMatrix& copy, TestMatrix& parameter, std::int64_t count, Place place) {
  TestMatrix cast(DType::bf16, 1, count, place);
  ops::cuda::copy(device_stream(), cast.device(), parameter.device());
  EXPECT_EQ(copy.downloaded(), cast.downloaded()) << count << " elements, seed " << seed;
}

TEST(CudaOptimizers, AdamwStepsAsOnTheCpu) {
  const ops::AdamwStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.19, 0.0975, 0.3};
  for (const auto count : all_counts)
    for (const auto place : both_places) {
      TestMatrix copy(DType::bf16, 1, count, place);
      TestMatrix p(DType::f32, 1, count, place), m(DType::f32, 1, count, place);
      TestMatrix g(DType::f32, 1, count, place), v(DType::f32, 1, count, place);
      ops::fill(host_stream(), v.host(), 0.25F);  // a mean of squares is not negative
      ops::cuda::fill(device_stream(), v.device(), 0.25F);
      for (int repeat = 0; repeat < 2; ++repeat) {
        ops::adamw(host_stream(), {p.host(), m.host(), v.host(), g.host()}, step);
        const auto to = repeat == 0 ? Tensor() : copy.device();
        ops::cuda::adamw(device_stream(), {p.device(), m.device(), v.device(), g.device(), to},
                         step);
      }
      expect_copied(copy, p, count, place);
      p.expect_equal(1e-6, "parameter");
      m.expect_equal(1e-6, "exp_avg");
      v.expect_equal(1e-6, "exp_avg_sq");
    }
}

TEST(CudaOptimizers, AdamwRoundsMomentsInBf16AsOnTheCpu) {
  const ops::AdamwStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.19, 0.0975, 0.3};
  for (const auto count : all_counts)
    for (const auto place : both_places) {
      TestMatrix p(DType::f32, 1, count, place), m(DType::bf16, 1, count, place, 0.0);
      TestMatrix g(DType::f32, 1, count, place), v(DType::bf16, 1, count, place, 0.0);
      // Runs of 37 elements, every 120, from an odd element on.
      const ops::RoundingBits bits{0x123456789abcdefU, 0xfedcba987654321U, 245, 7, 37, 120};
      ops::adamw(host_stream(), {p.host(), m.host(), v.host(), g.host(), {}, bits}, step);
      ops::cuda::adamw(device_stream(), {p.device(), m.device(), v.device(), g.device(), {}, bits},
                       step);
      p.expect_equal(1e-6, "parameter");
      // Where fused operations change the last bit of a moment, it may round the other way.
      m.expect_equal(8e-3, "exp_avg");
      v.expect_equal(8e-3, "exp_avg_sq");
    }
}

TEST(CudaOptimizers, MuonsMomentumIsThatOfTheCpu) {
  const ops::RoundingBits bits{0x123456789abcdefU, 0xfedcba987654321U, 245, 7, 37, 120};
  for (const auto dtype : {DType::f32, DType::bf16})
    for (const bool nesterov : {true, false})
      for (const auto count : all_counts)
        for (const auto place : both_places) {
          TestMatrix u(DType::f32, 1, count, place), m(dtype, 1, count, place);
          TestMatrix g(DType::f32, 1, count, place);
          const ops::MuonMomentumStep step{0.95F, nesterov, 0.3F};
          ops::muon_momentum(host_stream(), {u.host(), m.host(), g.host(), bits}, step);
          ops::cuda::muon_momentum(device_stream(), {u.device(), m.device(), g.device(), bits},
                                   step);
          u.expect_equal(1e-6, "update");
          m.expect_equal(dtype == DType::f32 ? 1e-6 : 8e-3, "momentum");
        }
}

TEST(CudaOptimizers, TheQuadraticOfASymmetricMatrixIsThatOfTheCpu) {
  for (const std::int64_t k : {1, 7, 33, 100}) {
    TestMatrix x(DType::f32, k, k), squared(DType::f32, k, k);
    ops::matrix_quadratic(host_stream(), squared.host(), x.host(), 3.0F, -4.0F, 2.0F);
    ops::cuda::matrix_quadratic(device_stream(), squared.device(), x.device(), 3.0F, -4.0F, 2.0F);
    squared.expect_equal(1e-6, "quadratic");
    ops::matrix_quadratic(host_stream(), x.host(), x.host(), 0, 0, 1);
    ops::cuda::matrix_quadratic(device_stream(), x.device(), x.device(), 0, 0, 1);
    x.expect_equal(0, "mirrored");
  }
}

TEST(CudaOptimizers, SgdStepsAsOnTheCpu) {
  const ops::SgdStep step{1e-2F, 0.9F, 0.1F, 0.3F};
  for (const auto count : all_counts)
    for (const auto place : both_places) {
      TestMatrix copy(DType::bf16, 1, count, place);
      TestMatrix p(DType::f32, 1, count, place), b(DType::f32, 1, count, place);
      TestMatrix g(DType::f32, 1, count, place);
      for (int repeat = 0; repeat < 2; ++repeat) {
        ops::sgd(host_stream(), {p.host(), b.host(), g.host()}, step);
        const auto to = repeat == 0 ? Tensor() : copy.device();
        ops::cuda::sgd(device_stream(), {p.device(), b.device(), g.device(), to}, step);
      }
      expect_copied(copy, p, count, place);
      p.expect_equal(1e-6, "parameter");
      b.expect_equal(1e-6, "momentum");
    }
}

TEST(CudaOptimizers, OuterStepsAsOnTheCpu) {
  const ops::OuterStep step{.lr = 0.7F, .momentum = 0.9F, .local_share = 0.25F};
  for (const auto count : all_counts)
    for (const auto place : both_places)
      for (const bool has_momentum : {true, false}) {
        TestMatrix copy(DType::bf16, 1, count, place);
        TestMatrix outer(DType::f32, 1, count, place), p(DType::f32, 1, count, place);
        TestMatrix momentum(DType::f32, 1, count, place), d(DType::f32, 1, count, place);
        for (int repeat = 0; repeat < 2; ++repeat) {
          ops::scaled_difference(host_stream(), d.host(), outer.host(), p.host(), 0.5F);
          ops::cuda::scaled_difference(device_stream(), d.device(), outer.device(), p.device(),
                                       0.5F);
          ops::outer_step(host_stream(),
                          {.outer = outer.host(),
                           .momentum = has_momentum ? momentum.host() : Tensor(),
                           .difference = d.host(),
                           .parameter = p.host()},
                          step);
          ops::cuda::outer_step(device_stream(),
                                {.outer = outer.device(),
                                 .momentum = has_momentum ? momentum.device() : Tensor(),
                                 .difference = d.device(),
                                 .parameter = p.device(),
                                 .copy = repeat == 0 ? Tensor() : copy.device()},
                                step);
        }
        expect_copied(copy, p, count, place);
        outer.expect_equal(1e-6, "outer weights");
        p.expect_equal(1e-6, "parameter");
        momentum.expect_equal(1e-6, "momentum");
        d.expect_equal(1e-6, "difference");
      }
}

}  // namespace
}  // namespace llamesh::test
