#include "model/pair_log.hpp"

#include <utility>

#include "ops/calls.hpp"

namespace llamesh::model {

void PairLog::add(std::span<const float> results) {
  const auto count = results.size() / ops::pair_results;
  for (std::size_t pair = 0; pair < count; ++pair) {
    const auto row = [&](std::size_t i) { return results[i * count + pair]; };
    pairs_.push_back({row(0), {row(1), row(2)}, {row(3), row(4)}});
  }
}

std::vector<PairResult> PairLog::take() {
  arrivals_.finish();
  return std::exchange(pairs_, {});
}

}  // namespace llamesh::model
