#pragma once

#include <filesystem>
#include <string>

namespace llamesh::train {

/// Returns <run folder>/log.txt.
std::filesystem::path log_file(const std::filesystem::path& folder);

/// Returns <run folder>/log.rank-00012.txt: rank 12's log, with log.ranks.
std::filesystem::path log_file_of_rank(const std::filesystem::path& folder, int rank);

/// Creates the run folder and starts log.txt there. Returns the path of metrics.jsonl. Rank 0 only.
/// An I/O failure throws (exit 74).
std::filesystem::path open_run_folder(const std::filesystem::path& folder);

/// Writes config.yaml. Called once the inputs are accepted: a refused start leaves the run's file
/// unchanged. Rank 0 only. An I/O failure throws (exit 74).
void write_config(const std::filesystem::path& folder, const std::string& config);

/// Writes chat_template.jinja: the model's own template, which has written the run's conversations.
/// Called with the inputs. Rank 0 only. An I/O failure throws (exit 74).
void write_chat_template(const std::filesystem::path& folder, const std::string& text);

}  // namespace llamesh::train
