#include "data/folder_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"

namespace llamesh::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t max_entries = 1'000'000;

/// A walk through a folder and those below it.
class FolderWalk {
 public:
  explicit FolderWalk(const std::string& top) : top_(top), pending_{top} {}

  std::vector<std::string> files() {
    while (!pending_.empty()) {
      const fs::path folder = std::move(pending_.back());
      pending_.pop_back();
      if (is_new(folder)) read(folder);
    }
    std::ranges::sort(files_);
    return std::move(files_);
  }

 private:
  /// Returns true if the folder was not read before, under this name or another.
  bool is_new(const fs::path& folder) {
    struct stat status {};
    return ::stat(folder.c_str(), &status) != 0 ||
           visited_.emplace(status.st_dev, status.st_ino).second;
  }

  void read(const fs::path& folder) {
    std::error_code error;
    fs::directory_iterator entries(folder, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) add(*entries);
    if (error)
      fail(exit_code_of(error), "the folder '{}' cannot be read: {}", folder.string(),
           error.message());
  }

  void add(const fs::directory_entry& entry) {
    validate(++entries_ <= max_entries,
             "'{}' holds more than {} files and folders; name a folder that holds only data", top_,
             max_entries);
    if (entry.path().filename().string().starts_with('.')) return;
    std::error_code ignored;  // a link without a target is neither
    if (entry.is_directory(ignored))
      pending_.push_back(entry.path());
    else if (entry.is_regular_file(ignored))
      files_.push_back(entry.path().string());
  }

  const std::string& top_;
  std::vector<fs::path> pending_;
  std::set<std::pair<dev_t, ino_t>> visited_;
  std::vector<std::string> files_;
  std::int64_t entries_ = 0;
};

}  // namespace

std::vector<std::string> files_below(const std::string& folder) {
  auto files = FolderWalk(folder).files();
  validate(!files.empty(), "the folder '{}' holds no file", folder);
  return files;
}

}  // namespace llamesh::data
