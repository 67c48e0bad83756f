#include "device/hardware.hpp"

#include <algorithm>
#include <cmath>

namespace llamesh::device {

double RateTable::at(double size) const {
  const auto above =
      std::ranges::upper_bound(points, size, {}, [](const auto& p) { return p.first; });
  if (above == points.begin()) return above->second * size / above->first;
  if (above == points.end()) return points.back().second;
  const auto& [low, low_rate] = *std::prev(above);
  const auto& [high, high_rate] = *above;
  return low_rate * std::pow(high_rate / low_rate, std::log(size / low) / std::log(high / low));
}

}  // namespace llamesh::device
