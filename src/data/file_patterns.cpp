#include "data/file_patterns.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "data/megatron.hpp"

namespace llamesh::data {
namespace {

/// The result of glob(3), freed at the end of the scope.
struct Matches {
  Matches() = default;
  ~Matches() { ::globfree(&found); }
  Matches(const Matches&) = delete;
  Matches& operator=(const Matches&) = delete;
  glob_t found{};
};

}  // namespace

std::vector<std::string> matching_files(const std::string& name, Format format) {
  if (name.find_first_of("*?[") == name.npos) return {name};
  const bool pairs = format == Format::megatron;
  const std::string pattern = pairs ? megatron_stem(name) + ".idx" : name;
  std::error_code ignored;
  if (std::filesystem::exists(pattern, ignored)) return {name};
  Matches matches;
  const int status = ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &matches.found);
  validate(status == 0, "no file matches '{}'{}; it is looked for from {}", pattern,
           status == GLOB_NOMATCH ? "" : " (a folder on the way is missing or cannot be read)",
           std::filesystem::current_path(ignored).string());
  std::vector<std::string> files(matches.found.gl_pathv,
                                 matches.found.gl_pathv + matches.found.gl_pathc);
  if (pairs)
    for (std::string& file : files) file = megatron_stem(file);
  std::ranges::sort(files);  // in any locale
  return files;
}

}  // namespace llamesh::data
