#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/program/command.hpp"
#include "app/program/output_file.hpp"
#include "app/report/page_data.hpp"

namespace llamesh::app {

/// Returns the runs' report, or their comparison if there are several, as a self-contained HTML
/// page: page.cpp.in, with report.css, report.js, and page_data() for the script.
std::string report_page(const std::vector<ReportedRun>& runs, int refresh = 0);

/// Adds `llamesh report`.
Declare declare_report;

/// The page up to its data, and after them; CMake generates page.cpp.
extern const char* const page_before_data;
extern const char* const page_after_data;

/// Draws the runs' metrics.jsonl into `file` (an OutputFile name). Empty: report.html in the run's
/// folder, or for several runs comparison.html in the working folder. Always replaces an earlier
/// report. Readable on light and dark screens and in print. Returns the file's path, "-" for
/// standard output. A folder without metrics.jsonl, or without a step in it, is a user error (exit
/// 78); a report that cannot be written exits 74. `refresh`: as in page_data().
std::filesystem::path write_report(const std::vector<std::string>& run_folders,
                                   const std::string& file = "",
                                   Existing existing = Existing::refuse, int refresh = 0);

/// Writes the report at the end of a run. Errors become warnings, and a folder without a step is
/// not an error. Returns the file's path; empty: none was written.
std::filesystem::path write_report_quietly(const std::filesystem::path& run_folder) noexcept;

}  // namespace llamesh::app
