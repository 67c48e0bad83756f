#pragma once

#include <cstddef>
#include <vector>

namespace llamesh::app {

/// Returns the number of steps over which a run's curves are smoothed.
std::size_t smoothing_span(std::size_t steps);

/// Smooths a curve: means over about `span` values around each, fewer towards the ends so that it
/// does not lag. Gaps stay gaps. Outliers keep their values and count in no mean, so a spike is
/// neither flattened nor widened.
std::vector<double> smoothed(const std::vector<double>& curve, std::size_t span);

/// Returns which points of a curve to draw, at most `max_points`. If there are more, keeps the
/// first, the last, and the lowest and highest in each of many equal stretches, so that spikes stay
/// visible.
std::vector<std::size_t> points_to_draw(const std::vector<double>& curve, std::size_t max_points);

}  // namespace llamesh::app
