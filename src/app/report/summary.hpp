#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/report/run_metrics.hpp"

namespace llamesh::app {

/// What a report is drawn from.
struct ReportedRun {
  std::string name;    ///< on the page
  std::string config;  ///< the text of config.yaml; parts that cannot be read are left out
  RunMetrics metrics;  ///< with a step at least
};

using Field = std::function<double(const StepMetrics&)>;

/// Of the finite values; NaN without any. Later steps only: the first one also warms up.
double median(const RunMetrics& run, const Field& field);
double largest(const RunMetrics& run, const Field& field);
/// Over how many steps curves are smoothed.
std::size_t smoothing_span(std::size_t steps);

/// "1 step", "2 steps".
std::string counted(std::int64_t count, const std::string& noun);
/// "8.03 B" from a billion on, else as compact().
std::string parameters_text(std::int64_t count);
/// "1.50 GiB", "1.5 MiB", "1.5 KiB", "15 B".
std::string bytes_text(double bytes);
inline std::string bytes_text(std::int64_t bytes) {
  return bytes_text(static_cast<double>(bytes));
}
std::string duration_text(double seconds);

/// Model, strategy and precision as config.yaml has them, ranks and mesh of the last start, in a
/// line of HTML.
std::string facts(const ReportedRun& run);
/// The figures that are looked for first, as HTML.
std::string tiles(const RunMetrics& run);
/// The same figures of several runs, a row each.
std::string summary_table(const std::vector<ReportedRun>& runs);
/// What a rank sends in a step, by axis.
std::string traffic_table(const RunMetrics& run);
/// Each start of the run: when, where, with which version, and the phases of the last start-up.
std::string starts_table(const RunMetrics& run);

}  // namespace llamesh::app
