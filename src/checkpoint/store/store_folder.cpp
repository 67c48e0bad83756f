#include "checkpoint/store/store_folder.hpp"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>

#include "checkpoint/format/format.hpp"
#include "checkpoint/format/manifest.hpp"
#include "core/error.hpp"
#include "core/file.hpp"

namespace llamesh::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::ptrdiff_t max_quarantined = 2;

std::vector<fs::path> names_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  do {
    found.clear();
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
      found.push_back(at->path());
  } while (error == std::errc::interrupted);
  if (error && error != std::errc::no_such_file_or_directory)
    fail(ExitCode::io_failure, "cannot list {}: {}", folder.string(), error.message());
  return found;
}

/// Returns the step of a quarantined checkpoint; -1 for any other name.
std::int64_t step_of_quarantined(const fs::path& path) {
  const auto name = path.filename().string();
  const auto at = name.find(".quarantined-");
  std::error_code error;
  if (at == std::string::npos || !fs::exists(path / state_name, error)) return -1;
  return step_of_name(std::string_view(name).substr(0, at));
}

}  // namespace

std::int64_t step_of(const fs::path& path) {
  return step_of_name(path.filename().string());
}

std::vector<fs::path> committed_checkpoints(const fs::path& folder) {
  auto found = names_in(folder);
  std::erase_if(found, [](const fs::path& path) { return step_of(path) < 0; });
  std::ranges::sort(found, std::greater<>(), step_of);
  return found;
}

std::vector<fs::path> partial_checkpoints_in(const fs::path& folder) {
  auto found = names_in(folder);
  std::erase_if(found, [](const fs::path& path) {
    const auto name = path.filename().string();
    return !name.starts_with("step_") || name.find(".partial-") == std::string::npos;
  });
  return found;
}

std::int64_t partial_checkpoint_bytes(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (const auto& partial : partial_checkpoints_in(folder))
    for (fs::recursive_directory_iterator at(partial, error), end; !error && at != end;
         at.increment(error)) {
      struct stat status {};
      if (lstat(at->path().c_str(), &status) == 0) bytes += 512 * status.st_blocks;
    }
  return bytes;
}

void quarantine_because(const fs::path& path, std::string_view why) {
  const auto to = quarantine(path, path);
  spdlog::warn("{} {}: it is now {}", path.string(), why, to.filename().string());
}

void quarantine_later_than(const fs::path& folder, std::int64_t newest) {
  for (const auto& path : committed_checkpoints(folder))
    if (step_of(path) > newest) quarantine_because(path, "is later than the newest checkpoint");
}

std::vector<fs::path> stale_in_quarantine(const fs::path& folder, std::int64_t newest) {
  auto found = names_in(folder);
  std::erase_if(found, [](const fs::path& path) { return step_of_quarantined(path) < 0; });
  std::ranges::sort(found, std::greater<>(), step_of_quarantined);
  const auto fresh = std::ranges::find_if(
      found, [&](const fs::path& path) { return step_of_quarantined(path) < newest; });
  found.erase(found.begin(), found.begin() + std::min(max_quarantined, fresh - found.begin()));
  return found;
}

void remove_quietly(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) spdlog::warn("cannot remove {}: {}", path.string(), error.message());
}

void remove_committed(const fs::path& path) {
  auto doomed = path;
  doomed += ".partial-removed";
  remove_quietly(doomed);
  rename_path(path, doomed);
  remove_quietly(doomed);
}

}  // namespace llamesh::checkpoint
