#include "data/data_files.hpp"

#include <fnmatch.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "data/megatron.hpp"

namespace llamesh::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t max_names = 10'000'000;  // a gigabyte of names

bool is_wild(const std::string& part) {
  return part.find_first_of("*?[") != part.npos;
}

/// Expander for patterns. It works like glob(3), part by part, with two differences that keep
/// symbolic link loops from being followed along exponentially many paths: at each depth a folder
/// is read once, under its first name, and names are read in byte order.
class Expansion {
 public:
  explicit Expansion(const std::string& pattern) : pattern_(pattern) {
    validate(pattern.size() < PATH_MAX, "a pattern has {} bytes; at most {} are a path",
             pattern.size(), PATH_MAX - 1);
    for (const auto& part : fs::path(pattern)) {
      if (part.empty()) continue;  // after a trailing /
      if (part.is_absolute())
        found_ = {part};
      else
        descend(part.string());
    }
    std::erase_if(found_, [](const fs::path& path) {
      struct stat status {};
      return ::lstat(path.c_str(), &status) != 0;
    });
    if (!repeated_.empty())
      spdlog::warn(
          "the pattern '{}' reaches folders by several names, through symbolic links (as {}): each "
          "is read once",
          pattern, repeated_.string());
  }

  const std::vector<fs::path>& found() const { return found_; }

 private:
  void descend(const std::string& part) {
    std::set<std::pair<dev_t, ino_t>> entered;
    std::vector<fs::path> next;
    for (const auto& folder : found_) {
      struct stat status {};
      if (::stat(folder.empty() ? "." : folder.c_str(), &status) != 0)
        refuse_unless_absent(folder, {errno, std::generic_category()});
      else if (!S_ISDIR(status.st_mode))
        continue;
      else if (!entered.emplace(status.st_dev, status.st_ino).second)
        repeated_ = folder;
      else if (is_wild(part))
        add_matches(folder, part, next);
      else
        next.push_back(folder / part);
    }
    any_wild_ |= is_wild(part);
    found_ = std::move(next);
  }

  void add_matches(const fs::path& folder, const std::string& part, std::vector<fs::path>& to) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator at(folder.empty() ? "." : folder, error), end; !error && at != end;
         at.increment(error)) {
      auto name = at->path().filename().string();
      if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
      names.push_back(std::move(name));
      validate(++names_ <= max_names, "the pattern '{}' matches more than {} names; name fewer",
               pattern_, max_names);
    }
    if (error) refuse(folder, error);
    std::ranges::sort(names);  // in any locale
    for (const auto& name : names) to.push_back(folder / name);
  }

  /// Refuses the folder, unless it is absent and was matched by a wildcard.
  void refuse_unless_absent(const fs::path& folder, const std::error_code& error) const {
    const bool leads_nowhere = error == std::errc::no_such_file_or_directory ||
                               error == std::errc::not_a_directory ||
                               error == std::errc::too_many_symbolic_link_levels;
    if (!any_wild_ || !leads_nowhere) refuse(folder, error);
  }
  [[noreturn]] void refuse(const fs::path& folder, const std::error_code& error) const {
    fail(ExitCode::bad_input, "no file matches '{}': the folder {} cannot be read: {}", pattern_,
         folder.empty() ? "." : folder.string(), error.message());
  }

  const std::string& pattern_;
  std::vector<fs::path> found_{fs::path()};
  bool any_wild_ = false;
  std::int64_t names_ = 0;
  fs::path repeated_;  ///< a folder under another than its first name
};

}  // namespace

std::vector<std::string> matching_files(const std::string& name, Format format) {
  if (!is_wild(name)) return {name};
  const bool pairs = format == Format::megatron;
  const std::string pattern = pairs ? megatron_stem(name) + ".idx" : name;
  std::error_code ignored;
  if (fs::exists(pattern, ignored)) return {name};
  const Expansion expansion(pattern);
  validate(!expansion.found().empty(), "no file matches '{}'; it is looked for from {}", pattern,
           fs::current_path(ignored).string());
  std::vector<std::string> files;
  for (const auto& path : expansion.found())
    files.push_back(pairs ? megatron_stem(path.string()) : path.string());
  std::ranges::sort(files);
  return files;
}

}  // namespace llamesh::data
