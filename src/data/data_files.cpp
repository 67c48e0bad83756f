#include "data/data_files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/text.hpp"
#include "data/foreign_data.hpp"
#include "data/loss_mask.hpp"
#include "data/megatron.hpp"

namespace llamesh::data {
namespace {

/// Keeps one name per Megatron pair, and leaves out loss masks.
void join_files(std::vector<std::string>& files, Format format) {
  std::erase_if(files, is_loss_mask);
  if (format == Format::megatron) {
    std::erase_if(files, [](const std::string& file) { return !file.ends_with(".idx"); });
    for (std::string& file : files) file = megatron_stem(file);
  } else if (format == Format::automatic) {
    std::erase_if(files, [all = files](const std::string& file) {  // sorted
      return file.ends_with(".idx") &&
             std::ranges::binary_search(all, megatron_stem(file) + ".bin");
    });
  }
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

/// Returns true if the name is a file's, or that of a Megatron pair without its extension.
bool is_there(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::exists(name, ignored) ||
         std::filesystem::exists(megatron_stem(name) + ".idx", ignored);
}

std::vector<std::string> files_of_folder(const std::string& folder, Format format) {
  refuse_saved_dataset(folder);
  auto files = files_below(folder);
  join_files(files, format);
  validate(!files.empty(), "the folder '{}' holds no pair of .bin and .idx", folder);
  return files;
}

std::vector<std::string> files_of_pattern(const std::string& word, Format format) {
  auto matches = matching_files(word, format);
  if (matches == std::vector{word}) return matches;
  join_files(matches, format == Format::megatron ? Format::text : format);
  std::vector<std::string> files;
  for (std::string& match : matches)
    if (is_folder(match))
      for (std::string& file : files_of_folder(match, format)) files.push_back(std::move(file));
    else
      files.push_back(std::move(match));
  validate(!files.empty(), "'{}' matches only loss masks; name the token files beside them", word);
  return files;
}

/// Returns the files named by a list's lines.
std::vector<std::string> files_of_list(const std::string& list, Format format) {
  std::vector<std::string> files;
  std::int64_t number = 0;
  const auto add = [&](std::string_view line, bool /*ended*/) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) return;
    const std::string word(line);
    try {
      auto found = is_folder(word) ? files_of_folder(word, format) : files_of_pattern(word, format);
      validate(found != std::vector{word} || is_there(word), "'{}' does not exist{}", excerpt(word),
               did_you_mean_path(word));
      for (std::string& file : found) files.push_back(std::move(file));
    } catch (const Error& error) {
      fail(error.code(), "'{}', line {}: {}", list, number, error.what());
    }
  };
  for_each_line(Descriptor::to_read(list), add);
  validate(!files.empty(), "the list '{}' names no file", list);
  return files;
}

std::string note_on(const std::string& word, const char* kind,
                    const std::vector<std::string>& files) {
  return fmt::format("'{}' is a {} of {} {}, '{}'{}", word, kind, files.size(),
                     files.size() == 1 ? "file" : "files", files.front(),
                     files.size() == 1 ? "" : fmt::format(" to '{}'", files.back()));
}

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

NamedFiles find_data_files(const std::string& word, Format format) {
  if (is_folder(word)) {
    auto files = files_of_folder(word, format);
    return {files, note_on(word, "folder", files)};
  }
  std::error_code ignored;
  if (word.starts_with('@') && !std::filesystem::exists(word, ignored)) {
    auto files = files_of_list(word.substr(1), format);
    return {files, note_on(word, "list", files)};
  }
  return {files_of_pattern(word, format)};
}

std::vector<std::string> files_below(const std::string& folder) {
  auto files = FolderWalk(folder).files();
  validate(!files.empty(), "the folder '{}' holds no file", folder);
  return files;
}

}  // namespace llamesh::data
