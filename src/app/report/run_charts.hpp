#pragma once

#include <string>
#include <vector>

#include "app/report/chart.hpp"
#include "app/report/summary.hpp"

namespace llamesh::app {

/// When the steps of the runs were done, in the unit that suits the longest of them.
Clocks clocks_of(const std::vector<ReportedRun>& runs);

/// All charts of one run.
std::vector<Chart> charts_of(const RunMetrics& run);
/// Charts with a curve for each run.
std::vector<Chart> comparing_charts(const std::vector<ReportedRun>& runs);

}  // namespace llamesh::app
