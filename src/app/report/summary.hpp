#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/report/chart.hpp"
#include "app/report/run_metrics.hpp"
#include "core/text.hpp"
#include "train/records/goodput.hpp"

namespace llamesh::app {

using train::RunMetrics;
using train::RunStart;

/// Data for a report.
struct ReportedRun {
  std::string name;    ///< title on the page
  std::string config;  ///< config.yaml's text; unreadable parts are left out
  RunMetrics metrics;  ///< with at least one step
  std::optional<train::Goodput> goodput = {};  ///< empty: unknown
};

using Field = std::function<double(const train::StepRecord&)>;

/// Returns the median over finite values; NaN without any. Skips the first step, which also warms
/// up.
double median(const RunMetrics& run, const Field& field);
double largest(const RunMetrics& run, const Field& field);
/// Returns the number of steps over which curves are smoothed.
std::size_t smoothing_span(std::size_t steps);

/// Returns a line of HTML with model, strategy and precision from config.yaml, and ranks and mesh
/// at the last start.
std::string facts(const ReportedRun& run);
/// Returns the key figures as HTML.
std::string tiles(const RunMetrics& run);
/// Returns the same figures for several runs, one row each.
std::string summary_table(const std::vector<ReportedRun>& runs);
/// Returns the traffic per rank and step, by axis.
std::string traffic_table(const RunMetrics& run);
/// Returns where the time of all starts went, as bars.
std::string goodput_table(const ReportedRun& run);
/// Lists each start of the run: time, host and version, and the last start-up's phases.
std::string starts_table(const RunMetrics& run);

/// A key whose value differs among several config.yaml files.
struct ConfigDifference {
  std::string key;                  ///< "optimizer.lr"
  std::vector<std::string> values;  ///< one per file; empty: no such key
};

/// Returns the differences in key order, without the run's name and folder. A text that is no YAML
/// map has no keys.
std::vector<ConfigDifference> config_differences(const std::vector<std::string>& configs);

/// Returns the runs' clocks, in the time unit that suits the longest run.
Clocks clocks_of(const std::vector<ReportedRun>& runs);

/// Returns all charts for one run.
std::vector<Chart> charts_of(const RunMetrics& run);
/// Returns charts with one curve per run.
std::vector<Chart> comparing_charts(const std::vector<ReportedRun>& runs);

}  // namespace llamesh::app
