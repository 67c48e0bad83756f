#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/status/run_status.hpp"

namespace llamesh::app {

/// A run in a folder of runs.
struct ListedRun {
  std::string folder;
  RunStatus status;  ///< "unknown" with the error as its reason, if a file cannot be read
};

/// Returns the runs directly below a folder that is not a run itself, by name. Empty if there are
/// none.
std::vector<ListedRun> list_runs(const std::filesystem::path& folder);

/// Returns the object for `llamesh status --json` on such a folder.
Json to_json(const std::vector<ListedRun>& runs);

/// Formats a line per run.
std::vector<std::string> to_lines(const std::vector<ListedRun>& runs);

}  // namespace llamesh::app
