#include "app/status/run_status.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

bool is_run(const fs::path& folder) {
  constexpr std::array names{"state.json", "config.yaml", "metrics.jsonl", "checkpoints"};
  return std::ranges::any_of(names, [&](const char* name) {
    std::error_code ignored;
    return fs::exists(folder / name, ignored);
  });
}

RunStatus status_of(const fs::path& folder) {
  try {
    return read_status(folder);
  } catch (const Error& error) {
    RunStatus status;
    status.phase = "unknown";
    status.reason = error.what();
    return status;
  }
}

}  // namespace

std::vector<ListedRun> list_runs(const fs::path& folder) {
  std::vector<ListedRun> runs;
  if (is_run(folder)) return runs;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    if (is_run(entries->path()))
      runs.push_back({entries->path().string(), status_of(entries->path())});
  std::ranges::sort(runs, {}, &ListedRun::folder);
  return runs;
}

Json to_json(const std::vector<ListedRun>& runs) {
  Json list = Json::array();
  for (const auto& run : runs) {
    Json one{{"run", run.folder}};
    one.update(to_json(run.status));
    list.push_back(std::move(one));
  }
  return {{"runs", list}};
}

std::vector<std::string> to_lines(const std::vector<ListedRun>& runs) {
  std::vector<std::string> lines;
  for (const auto& [folder, status] : runs) {
    auto line = to_lines(status, folder).front();
    if (status.loss) line += fmt::format(", loss {:.4f}", *status.loss);
    if (status.phase != "done" && !status.reason.empty()) line += ": " + status.reason;
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace llamesh::app
