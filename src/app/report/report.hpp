#pragma once

#include <filesystem>
#include <string>

#include "app/report/run_metrics.hpp"

namespace llamesh::app {

/// The report of a run with at least one step as a page of HTML. Unreadable parts of config.yaml
/// are skipped, so that reports of older runs work.
std::string report_page(const RunMetrics& run, const std::string& name, const std::string& config);

/// Draws a run's metrics.jsonl into RUN_FOLDER/report.html: one file that needs nothing else,
/// readable on light and dark screens and in print. Says so where nothing has been recorded yet. A
/// folder without metrics.jsonl is a user error (exit 78); a report that cannot be written exits
/// 74.
void write_report(const std::filesystem::path& run_folder);

}  // namespace llamesh::app
