#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llamesh::model {

/// Sampling options for the next token, as in Hugging Face's generate().
struct SamplingOptions {
  double temperature = 0;  ///< divides the logits; 0: always the most likely token
  std::int64_t top_k = 0;  ///< keep only the k most likely; 0: all
  double top_p = 1;        ///< keep only the smallest set whose probabilities reach p (nucleus
                           ///< sampling)
  std::uint64_t seed = 0;
};

/// Token sampler. A choice is a function of the options, the logits and the number of earlier
/// choices.
class TokenSampler {
 public:
  /// Throws a user error if an option is out of range.
  explicit TokenSampler(const SamplingOptions& options);
  /// Returns the next token's id. Among equal logits the lower id counts as more likely.
  std::int32_t choose(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::uint64_t chosen_ = 0;
  std::vector<std::int32_t> order_;    ///< ids, most likely first, sorted only as far as needed
  std::vector<double> probabilities_;  ///< parallel to order_, unnormalized
};

}  // namespace llamesh::model
