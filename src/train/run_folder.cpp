#include "train/run_folder.hpp"

#include <fstream>

#include "core/error.hpp"
#include "core/log.hpp"

namespace llamesh::train {

std::filesystem::path open_run_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    fail(ExitCode::io_failure, "cannot make the run folder {}: {}", folder.string(),
         error.message());
  try {
    log_to_file((folder / "log.txt").string());
  } catch (const spdlog::spdlog_ex& failed) {
    fail(ExitCode::io_failure, "cannot start the log: {}", failed.what());
  }
  return folder / "metrics.jsonl";
}

void write_config(const std::filesystem::path& folder, const std::string& config) {
  std::ofstream out(folder / "config.yaml");
  out << config;
  out.close();
  if (!out) fail(ExitCode::io_failure, "cannot write {}", (folder / "config.yaml").string());
}

}  // namespace llamesh::train
