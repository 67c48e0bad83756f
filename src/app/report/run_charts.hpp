#pragma once

#include <string>
#include <vector>

#include "app/report/chart.hpp"
#include "app/report/summary.hpp"

namespace llamesh::app {

/// Returns the runs' clocks, in the time unit that suits the longest run.
Clocks clocks_of(const std::vector<ReportedRun>& runs);

/// Returns all charts for one run.
std::vector<Chart> charts_of(const RunMetrics& run);
/// Returns charts with one curve per run.
std::vector<Chart> comparing_charts(const std::vector<ReportedRun>& runs);

}  // namespace llamesh::app
