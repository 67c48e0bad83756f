#include <algorithm>

#include "ops/cpu/kernels.hpp"

namespace llamesh::ops::cpu {

void log_probs_of_documents(Stream& stream, Tensor log_probs, Tensor losses, Tensor documents) {
  expects(losses.numel() == documents.numel(), "{} losses of {} tokens", losses.numel(),
          documents.numel());
  stream.run([=] {
    auto* to = log_probs.as<float>();
    const auto* loss = losses.as<float>();
    const auto* document = documents.as<std::int32_t>();
    std::fill_n(to, log_probs.numel(), 0.0F);
    // A document's tokens follow one another, so that its sum is in double.
    const auto count = documents.numel();
    for (std::int64_t m = 0; m < count;) {
      const auto first = document[m];
      double sum = 0;
      for (; m < count && document[m] == first; ++m) sum += loss[m];
      if (first >= 0) to[first] -= static_cast<float>(sum);
    }
  });
}

void pair_losses(Stream& stream, const PairLossCall& c) {
  const auto pairs = c.references.numel() / 2;
  expects(c.results.numel() == pair_results * pairs && c.log_probs.numel() == 2 * pairs &&
              c.references.numel() == 2 * pairs && c.tokens.numel() == 2 * pairs &&
              c.row_factors.numel() == c.documents.numel(),
          "pair_losses shapes");
  stream.run([=] {
    auto* result = c.results.as<float>();
    const auto *log_prob = c.log_probs.as<float>(), *reference = c.references.as<float>(),
               *tokens = c.tokens.as<float>();
    const auto side = [&](std::int64_t d) {
      return PairSide{log_prob[d] - reference[d], tokens[d]};
    };
    for (std::int64_t p = 0; p < pairs; ++p) {
      const auto chosen = side(2 * p), rejected = side(2 * p + 1);
      result[p] = pair_terms(c.loss, c.beta, chosen, rejected).loss;
      result[pairs + p] = log_prob[2 * p];
      result[2 * pairs + p] = log_prob[2 * p + 1];
      result[3 * pairs + p] = c.beta * chosen.ratio;
      result[4 * pairs + p] = c.beta * rejected.ratio;
    }
    auto* factor = c.row_factors.as<float>();
    const auto* document = c.documents.as<std::int32_t>();
    for (std::int64_t m = 0; m < c.documents.numel(); ++m) {
      const std::int64_t d = document[m];
      const auto terms =
          d < 0 ? PairTerms{} : pair_terms(c.loss, c.beta, side(d / 2 * 2), side(d / 2 * 2 + 1));
      factor[m] = d % 2 == 0 ? -terms.by_chosen : -terms.by_rejected;
    }
  });
}

}  // namespace llamesh::ops::cpu
