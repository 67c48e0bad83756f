#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/program/output_file.hpp"
#include "train/records/goodput.hpp"
#include "train/records/run_metrics.hpp"

namespace llamesh::app {

/// Data for a report.
struct ReportedRun {
  std::string name;           ///< title on the page
  std::string config;         ///< config.yaml's text; unreadable parts are left out
  train::RunMetrics metrics;  ///< with at least one step
  std::optional<train::Goodput> goodput = {};  ///< empty: unknown
};

/// Returns what report.js shows: one run, or several with the differences between their inputs.
/// Several have no values of single steps or axes, which keeps their page small. The page loads
/// itself again every `refresh` seconds; 0: never.
Json page_data(const std::vector<ReportedRun>& runs, int refresh);

/// A key whose value differs among several config.yaml files.
struct ConfigDifference {
  std::string key;                  ///< "optimizer.lr"
  std::vector<std::string> values;  ///< one per file; empty: no such key
};

/// Returns the differences in key order, without the run's name and folder. Text that is not a YAML
/// map has no keys.
std::vector<ConfigDifference> config_differences(const std::vector<std::string>& configs);

}  // namespace llamesh::app
