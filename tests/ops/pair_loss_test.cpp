#include <cmath>
#include <vector>

#include "ops/ops.hpp"
#include "random_tensor.hpp"

namespace llamesh::test {
namespace {

using ops::PairLoss;

/// Two documents of a pair: log-ratios to the reference model, and tokens.
struct Sides {
  double chosen, rejected, chosen_tokens, rejected_tokens;
};

double expected_loss(PairLoss kind, double beta, const Sides& s) {
  if (kind == PairLoss::dpo) {
    const double margin = beta * (s.chosen - s.rejected);
    return std::log1p(std::exp(-margin));
  }
  const double distance =
      s.chosen / s.chosen_tokens - s.rejected / s.rejected_tokens - 1 / (2 * beta);
  return distance * distance;
}

TEST(PairTerms, AreTheLossAndItsDerivatives) {
  constexpr double step = 1e-4, beta = 0.3;
  for (const auto kind : {PairLoss::dpo, PairLoss::ipo})
    for (const Sides& s : {Sides{0, 0, 3, 5}, {2, -1, 7, 2}, {-4, 3, 1, 1}, {10, 12, 20, 30}}) {
      const auto terms =
          ops::pair_terms(kind, static_cast<float>(beta),
                          {static_cast<float>(s.chosen), static_cast<float>(s.chosen_tokens)},
                          {static_cast<float>(s.rejected), static_cast<float>(s.rejected_tokens)});
      const auto loss = [&](double chosen, double rejected) {
        return expected_loss(kind, beta, {chosen, rejected, s.chosen_tokens, s.rejected_tokens});
      };
      const auto slope = [&](double by_chosen, double by_rejected) {
        return (loss(s.chosen + by_chosen, s.rejected + by_rejected) -
                loss(s.chosen - by_chosen, s.rejected - by_rejected)) /
               (2 * step);
      };
      EXPECT_NEAR(terms.loss, loss(s.chosen, s.rejected), 1e-6 + 1e-7 * terms.loss);
      EXPECT_NEAR(terms.by_chosen, slope(step, 0), 1e-5);
      EXPECT_NEAR(terms.by_rejected, slope(0, step), 1e-5);
    }
}

TEST(PairTerms, StayFiniteForLargeMargins) {
  for (const float margin : {-1e5F, -200.0F, 200.0F, 1e5F}) {
    const auto terms = ops::pair_terms(PairLoss::dpo, 1.0F, {margin, 4}, {0, 4});
    EXPECT_EQ(terms.loss, std::max(-margin, 0.0F));
    EXPECT_EQ(terms.by_chosen, margin > 0 ? -0.0F : -1.0F);
    EXPECT_EQ(terms.by_rejected, -terms.by_chosen);
  }
}

// Three documents in a row's two pieces, as on a context rank, and a missing fourth.
TEST(PairLosses, SumDocumentsAndSpreadTheSlopes) {
  auto& stream = device::compute_stream();
  const std::vector<std::int32_t> of_tokens{0, 0, -1, 1, 1, 2, 0, -1};
  const Integers documents(of_tokens);
  const Matrix losses(DType::f32, 1, 8), log_probs(DType::f32, 1, 4), factors(DType::f32, 1, 8);
  const Matrix references(DType::f32, 1, 4), tokens(DType::f32, 1, 4), results(DType::f32, 5, 2);
  ops::log_probs_of_documents(stream, log_probs.view(), losses.view(), documents.tensor);
  for (std::int32_t d = 0; d < 4; ++d) {
    double sum = 0;
    for (std::int64_t m = 0; m < 8; ++m)
      if (of_tokens[static_cast<std::size_t>(m)] == d) sum -= losses.get(0, m);
    EXPECT_NEAR(log_probs.view().as<float>()[d], sum, 1e-6) << "document " << d;
    tokens.view().as<float>()[d] = static_cast<float>(d + 1);
  }
  for (const auto kind : {PairLoss::dpo, PairLoss::ipo}) {
    ops::pair_losses(stream, {.row_factors = factors.view(),
                              .results = results.view(),
                              .log_probs = log_probs.view(),
                              .references = references.view(),
                              .tokens = tokens.view(),
                              .documents = documents.tensor,
                              .loss = kind,
                              .beta = 0.2F});
    stream.record().wait();
    const auto side = [&](std::int64_t d) {
      return ops::PairSide{static_cast<float>(log_probs.get(0, d) - references.get(0, d)),
                           static_cast<float>(d + 1)};
    };
    for (std::int64_t p = 0; p < 2; ++p) {
      const auto terms = ops::pair_terms(kind, 0.2F, side(2 * p), side(2 * p + 1));
      EXPECT_EQ(results.get(0, p), terms.loss);
      for (const std::int64_t s : {0, 1}) {
        EXPECT_EQ(results.get(1 + s, p), log_probs.get(0, 2 * p + s));
        EXPECT_EQ(results.get(3 + s, p), 0.2F * side(2 * p + s).ratio);
      }
      for (std::int64_t m = 0; m < 8; ++m) {
        const auto d = of_tokens[static_cast<std::size_t>(m)];
        if (d / 2 != p && d >= 0) continue;
        const float expected = d < 0 ? 0.0F : d % 2 == 0 ? -terms.by_chosen : -terms.by_rejected;
        EXPECT_EQ(factors.get(0, m), expected);
      }
    }
  }
}

class RowFactors : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, RowFactors, ::testing::Values(DType::f32, DType::bf16), dtype_name);

// Powers of two change no digit, so both gradients have the same bits but for the factors.
TEST_P(RowFactors, ScaleTheGradientsOfRows) {
  auto& stream = device::compute_stream();
  const Integers targets({3, -1, 40, 0});
  const Matrix plain(GetParam(), 4, 41, 0, 3.0);
  Matrix scaled(GetParam(), 4, 41);
  const Matrix losses(DType::f32, 1, 4), factors(DType::f32, 1, 4);
  const float of_rows[] = {2.0F, 4.0F, -0.5F, 0.0F};
  std::ranges::copy(of_rows, factors.view().as<float>());
  scaled.set_bytes(plain.bytes());
  for (const bool with : {false, true})
    ops::cross_entropy(stream, {.losses = losses.view(),
                                .logits = with ? scaled : plain,
                                .targets = targets.tensor,
                                .gradient = ops::WithGradient::yes,
                                .scale = 0.25F,
                                .row_factors = with ? factors.view() : Tensor()});
  stream.record().wait();
  for (std::int64_t r = 0; r < 4; ++r)
    for (std::int64_t c = 0; c < 41; ++c)
      EXPECT_EQ(scaled.get(r, c), of_rows[r] * plain.get(r, c)) << r << ", " << c;
}

}  // namespace
}  // namespace llamesh::test
