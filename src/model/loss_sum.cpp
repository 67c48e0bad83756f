#include "model/loss_sum.hpp"

#include <cmath>
#include <utility>

namespace llamesh::model {
namespace {

/// In whole units, losses in double add up exactly, in any order.
constexpr double unit = 0x1p-24;

}  // namespace

void LossSum::add(std::span<const float> losses) {
  double sum = 0;
  for (const float loss : losses) sum += std::nearbyint(loss / unit) * unit;
  sum_ += sum;
}

double LossSum::sum() {
  arrivals_.finish();
  return sum_;
}

double LossSum::take() {
  sum();
  return std::exchange(sum_, 0.0);
}

}  // namespace llamesh::model
