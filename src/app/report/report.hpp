#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/output_file.hpp"
#include "app/report/summary.hpp"

namespace llamesh::app {

/// The report of a run as a page of HTML that needs nothing else: curves over the steps or over the
/// time, and with a script the values under the pointer.
std::string report_page(const ReportedRun& run);
/// The same of several runs: their curves in one chart each, and where their inputs differ.
std::string comparison_page(const std::vector<ReportedRun>& runs);

/// Draws metrics.jsonl of the runs into `file` (as OutputFile takes it); empty: report.html of the
/// run's folder, or for several runs comparison.html of the working folder. An earlier report is
/// always replaced. Readable on light and dark screens and in print. Returns the file's path, "-"
/// for standard output. A folder without metrics.jsonl, or without a step in it, is a user error
/// (exit 78); a report that cannot be written exits 74.
std::filesystem::path write_report(const std::vector<std::string>& run_folders,
                                   const std::string& file = "",
                                   Existing existing = Existing::refuse);

/// Writes the report at the end of a run: errors are warnings, and a folder without a step is none.
/// Returns the file's path; empty: none was written.
std::filesystem::path write_report_quietly(const std::filesystem::path& run_folder) noexcept;

}  // namespace llamesh::app
