#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llamesh::model {

/// How the next token is chosen, as in Hugging Face's generate().
struct SamplingOptions {
  double temperature = 0;  ///< logits are divided by it; 0: always the likeliest token
  std::int64_t top_k = 0;  ///< only the k likeliest; 0: all
  double top_p = 1;        ///< only the fewest whose probabilities reach p (nucleus sampling)
  std::uint64_t seed = 0;
};

/// Chooses tokens. Its choices are a function of the options, the logits and how many were chosen
/// before.
class TokenSampler {
 public:
  /// Throws a user error for options out of range.
  explicit TokenSampler(const SamplingOptions& options);
  /// The id of the next token. Of equal logits the lower id counts as the likelier.
  std::int32_t choose(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::uint64_t chosen_ = 0;
  std::vector<std::int32_t> order_;    ///< ids, likeliest first as far as needed
  std::vector<double> probabilities_;  ///< of order_, not yet divided by their sum
};

}  // namespace llamesh::model
