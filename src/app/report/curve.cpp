#include "app/report/curve.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/median.hpp"

namespace llamesh::app {
namespace {

/// Marks outliers: values whose distance from their stretch's median exceeds `far` times the median
/// distance.
std::vector<bool> outliers(const std::vector<double>& all, std::size_t stretch) {
  constexpr double far = 8;
  std::vector<bool> out(all.size());
  for (std::size_t begin = 0; begin < all.size(); begin += stretch) {
    const std::size_t end = std::min(begin + stretch, all.size());
    std::vector<double> values(all.begin() + static_cast<std::ptrdiff_t>(begin),
                               all.begin() + static_cast<std::ptrdiff_t>(end));
    const double middle = llamesh::median(values);
    for (double& value : values) value = std::abs(value - middle);
    const double distance = llamesh::median(std::move(values));
    for (std::size_t i = begin; i < end; ++i) out[i] = std::abs(all[i] - middle) > far * distance;
  }
  return out;
}

}  // namespace

std::size_t smoothing_span(std::size_t steps) {
  return std::clamp<std::size_t>(steps / 40, 1, 200);
}

std::vector<double> smoothed(const std::vector<double>& curve, std::size_t span) {
  if (span <= 1) return curve;
  std::vector<double> values;
  std::ranges::copy_if(curve, std::back_inserter(values),
                       [](double y) { return std::isfinite(y); });
  const auto is_outlier = outliers(values, 10 * span);
  std::vector<double> sums(values.size() + 1, 0.0), counts(values.size() + 1, 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[i + 1] = sums[i] + (is_outlier[i] ? 0 : values[i]);
    counts[i + 1] = counts[i] + (is_outlier[i] ? 0 : 1);
  }
  auto out = curve;
  for (std::size_t i = 0; double& value : out) {
    if (!std::isfinite(value)) continue;
    const std::size_t reach = std::min({span / 2, i, values.size() - 1 - i});
    const std::size_t begin = i - reach, end = i + reach + 1;
    if (!is_outlier[i++]) value = (sums[end] - sums[begin]) / (counts[end] - counts[begin]);
  }
  return out;
}

std::vector<std::size_t> points_to_draw(const std::vector<double>& curve, std::size_t max_points) {
  std::vector<std::size_t> kept;
  const auto keep = [&](std::size_t i) {
    if (kept.empty() || i > kept.back()) kept.push_back(i);
  };
  const std::size_t size = curve.size();
  const std::size_t stretches = size <= max_points ? size : max_points / 2 - 1;
  for (std::size_t i = 0; i < stretches; ++i) {
    const std::size_t begin = size * i / stretches;
    std::size_t low = begin, high = begin;
    for (std::size_t j = begin; j < size * (i + 1) / stretches; ++j) {
      if (curve[j] < curve[low] || std::isnan(curve[low])) low = j;
      if (curve[j] > curve[high] || std::isnan(curve[high])) high = j;
    }
    if (i == 0) keep(begin);
    keep(std::min(low, high));
    keep(std::max(low, high));
  }
  if (size > 0) keep(size - 1);
  return kept;
}

}  // namespace llamesh::app
