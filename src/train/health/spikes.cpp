#include "train/health/spikes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/median.hpp"

namespace llamesh::train {
std::vector<std::string> Spikes::observe(std::int64_t step, double loss, double grad_norm) {
  std::vector<std::string> lines;
  for (const auto& line : {observe(loss_, "loss", loss, least_loss, 0),
                           observe(grad_norm_, "gradient norm", grad_norm, 0, least_norm)})
    if (!line.empty()) lines.push_back(fmt::format("step {}: {}", step, line));
  return lines;
}

std::string Spikes::observe(Series& series, const char* name, double value, double least,
                            double least_of_median) {
  if (!std::isfinite(value)) return {};
  // A spike's values count as recent ones too: a level that stays becomes the usual one.
  const std::vector<double> before(series.recent.begin(), series.recent.end());
  series.recent.push_back(value);
  if (std::ssize(series.recent) > window) series.recent.pop_front();
  if (std::ssize(before) < fewest) return {};
  const double middle = median(before);
  auto distances = before;
  for (double& distance : distances) distance = std::abs(distance - middle);
  const double deviation = median(std::move(distances));
  const double above = value - middle;
  if (above <= std::max({deviations * deviation, least, least_of_median * middle})) {
    ++series.steps_since_high;
    return {};
  }
  if (std::exchange(series.steps_since_high, 0) < calm) return {};
  return fmt::format(
      "the {} is {:.4g}: {:.4g} above the median of the last {} steps ({:.4g}, median absolute "
      "deviation {:.2g})",
      name, value, above, before.size(), middle, deviation);
}

}  // namespace llamesh::train
