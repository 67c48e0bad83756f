#pragma once

#include <filesystem>
#include <string>

namespace llamesh::train {

/// <run folder>/log.txt.
std::filesystem::path log_file(const std::filesystem::path& folder);

/// Makes the run folder and starts log.txt there. Returns the path of metrics.jsonl. Rank 0 only.
/// An I/O failure throws (exit 74).
std::filesystem::path open_run_folder(const std::filesystem::path& folder);

/// Writes config.yaml, once it is known that a run goes on with these inputs: a start that is
/// refused leaves that of the run as it was. Rank 0 only. An I/O failure throws (exit 74).
void write_config(const std::filesystem::path& folder, const std::string& config);

}  // namespace llamesh::train
