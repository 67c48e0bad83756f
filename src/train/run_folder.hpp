#pragma once

#include <filesystem>
#include <string>

namespace llamesh::train {

/// Makes the run folder, writes config.yaml and starts log.txt there. Returns the path of
/// metrics.jsonl. Rank 0 only. An I/O failure throws (exit 74).
std::filesystem::path open_run_folder(const std::filesystem::path& folder,
                                      const std::string& config);

}  // namespace llamesh::train
