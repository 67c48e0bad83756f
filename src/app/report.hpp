#pragma once

#include <filesystem>

namespace llamesh::app {

/// Draws a run's metrics.jsonl into RUN_FOLDER/report.html: one file that needs nothing else,
/// readable on light and dark screens and on paper. Says so where nothing has been recorded yet. A
/// folder without metrics.jsonl is a user error (exit 78); a report that cannot be written
/// exits 74.
void write_report(const std::filesystem::path& run_folder);

}  // namespace llamesh::app
