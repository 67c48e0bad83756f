#include <array>
#include <cmath>

#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

class LatentHeads : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, LatentHeads, ::testing::Values(DType::f32, DType::bf16),
                         dtype_name);

/// Tensors for H heads with N + R dims in keys and V in values.
struct LatentProblem {
  LatentProblem(DType dtype, std::int64_t heads, std::int64_t N, std::int64_t R, std::int64_t V)
      : kv(dtype, 5, heads * (N + V), 2),
        k_rope(dtype, 5, R, 7),
        k(dtype, 5, heads * (N + R), 3),
        v(dtype, 5, heads * V, 1),
        call{heads, kv, k_rope, k, v} {}
  bool gaps_untouched() const {
    return kv.gaps_untouched() && k_rope.gaps_untouched() && k.gaps_untouched() &&
           v.gaps_untouched();
  }
  Matrix kv, k_rope, k, v;
  ops::LatentHeads call;
};

TEST_P(LatentHeads, ShareTheFirstDimsOfTheirPairs) {
  const std::int64_t H = 3, N = 10, R = 4, V = 19, half = (N + R) / 2;
  LatentProblem p(dtype(), H, N, R, V);
  ops::latent_heads(stream, p.call);
  for (std::int64_t m = 0; m < 5; ++m)
    for (std::int64_t h = 0; h < H; ++h) {
      std::int64_t next = 0;  // among the head's own dims
      for (std::int64_t e = 0; e < N + R; ++e) {
        const bool shared = e % half < R / 2;
        const auto expected = shared ? p.k_rope.get(m, e / half * (R / 2) + e % half)
                                     : p.kv.get(m, h * (N + V) + next++);
        EXPECT_EQ(p.k.get(m, h * (N + R) + e), expected) << "token " << m << ", dim " << e;
      }
      for (std::int64_t e = 0; e < V; ++e)
        EXPECT_EQ(p.v.get(m, h * V + e), p.kv.get(m, h * (N + V) + N + e));
    }
  EXPECT_TRUE(p.gaps_untouched());
}

/// A copy's gradient is a copy back, and for shared dims a sum.
TEST_P(LatentHeads, BackwardIsTheTransposedCopy) {
  const std::int64_t H = 3, N = 10, R = 4, V = 19, half = (N + R) / 2;
  LatentProblem p(dtype(), H, N, R, V);
  ops::latent_heads_backward(stream, p.call);
  LatentProblem again(dtype(), H, N, R, V);
  ops::copy(stream, again.kv, p.kv);
  ops::latent_heads(stream, again.call);
  EXPECT_EQ(again.v.numbers(), p.v.numbers());
  for (std::int64_t m = 0; m < 5; ++m)
    for (std::int64_t e = 0; e < N + R; ++e) {
      if (e % half >= R / 2) {
        for (std::int64_t h = 0; h < H; ++h)
          EXPECT_EQ(again.k.get(m, h * (N + R) + e), p.k.get(m, h * (N + R) + e));
        continue;
      }
      double sum = 0;
      for (std::int64_t h = 0; h < H; ++h) sum += p.k.get(m, h * (N + R) + e);
      EXPECT_NEAR(p.k_rope.get(m, e / half * (R / 2) + e % half), sum, near() * std::abs(sum));
    }
  EXPECT_TRUE(p.gaps_untouched());
}

TEST_P(LatentHeads, ThatDoNotFitAreRefused) {
  for (const auto& [kv, rope, k, v] :
       {std::array{10, 4, 18, 18}, {14, 3, 14, 14}, {14, 4, 12, 14}, {14, 16, 14, 14}}) {
    const Matrix a(dtype(), 2, kv), b(dtype(), 2, rope), c(dtype(), 2, k), d(dtype(), 2, v);
    EXPECT_THROW(ops::latent_heads(stream, {2, a, b, c, d}), std::exception);
    EXPECT_THROW(ops::latent_heads_backward(stream, {2, a, b, c, d}), std::exception);
  }
}

}  // namespace
}  // namespace llamesh::test
