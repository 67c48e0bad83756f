#include "data/data_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "core/error.hpp"
#include "core/file.hpp"
#include "data/file_patterns.hpp"
#include "data/folder_files.hpp"
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

std::vector<std::string> files_of_folder(const std::string& folder, Format format) {
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
      for (std::string& file :
           is_folder(word) ? files_of_folder(word, format) : files_of_pattern(word, format))
        files.push_back(std::move(file));
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

}  // namespace llamesh::data
