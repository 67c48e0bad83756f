#include "model/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"
#include "core/philox.hpp"

namespace llamesh::model {
namespace {

/// Returns a number in [0, 1) with 53 random bits.
double uniform(std::uint64_t seed, std::uint64_t index) {
  const auto words = philox(seed, 0, index);
  const auto bits = (std::uint64_t{words[0]} << 32U | words[1]) >> 11U;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace

TokenSampler::TokenSampler(const SamplingOptions& options) : options_(options) {
  validate(options.temperature >= 0 && std::isfinite(options.temperature),
           "the temperature is {}; give 0 (the likeliest token always) or more",
           options.temperature);
  validate(options.top_k >= 0, "top-k is {}; give 0 (all tokens) or more", options.top_k);
  validate(options.top_p > 0 && options.top_p <= 1, "top-p is {}; give a number in (0, 1]",
           options.top_p);
}

std::int32_t TokenSampler::choose(std::span<const float> logits) {
  expects(!logits.empty(), "no logits to choose from");
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  const auto likeliest = std::ranges::max_element(logits);
  const std::uint64_t index = chosen_++;
  if (options_.temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());

  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  if (options_.top_k > 0 && options_.top_k < std::ssize(order_)) {
    std::ranges::nth_element(order_, order_.begin() + options_.top_k - 1, likelier);
    order_.resize(static_cast<std::size_t>(options_.top_k));
  }
  if (options_.top_p < 1 || order_.size() < logits.size()) std::ranges::sort(order_, likelier);

  probabilities_.clear();
  for (const auto id : order_)
    probabilities_.push_back(
        std::exp((static_cast<double>(logits[static_cast<std::size_t>(id)]) - *likeliest) /
                 options_.temperature));
  double total = std::accumulate(probabilities_.begin(), probabilities_.end(), 0.0);
  if (options_.top_p < 1) {
    double reached = 0;
    std::size_t kept = 0;
    while (kept < probabilities_.size() && reached < options_.top_p * total)
      reached += probabilities_[kept++];
    probabilities_.resize(kept);
    total = reached;
  }
  double left = uniform(options_.seed, index) * total;
  std::size_t at = 0;
  while (at + 1 < probabilities_.size() && left >= probabilities_[at]) left -= probabilities_[at++];
  return order_[at];
}

}  // namespace llamesh::model
