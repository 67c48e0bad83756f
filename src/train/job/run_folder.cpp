#include "train/job/run_folder.hpp"

#include <fmt/format.h>

#include "core/file.hpp"
#include "core/log.hpp"

namespace llamesh::train {

std::filesystem::path log_file(const std::filesystem::path& folder) {
  return folder / "log.txt";
}

std::filesystem::path log_file_of_rank(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("log.rank-{:05}.txt", rank);
}

std::filesystem::path open_run_folder(const std::filesystem::path& folder) {
  make_folder(folder);
  log_to_file(log_file(folder));
  return folder / "metrics.jsonl";
}

void write_config(const std::filesystem::path& folder, const std::string& config) {
  write_durably(folder / "config.yaml", config);
}

void write_chat_template(const std::filesystem::path& folder, const std::string& text) {
  write_durably(folder / "chat_template.jinja", text);
}

}  // namespace llamesh::train
