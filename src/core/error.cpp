#include "core/error.hpp"

#include <algorithm>
#include <string_view>

namespace llamesh::detail {

void throw_user_error(ExitCode code, std::string text) {
  // Messages quote what stands in files and on the command line: neither a line's end nor an escape
  // sequence of a terminal gets out of there, nor a megabyte.
  constexpr std::size_t longest = 4000;
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  if (text.size() > longest) text.replace(longest / 2, text.size() - longest, " [...] ");
  throw Error(code, text);
}

void throw_bug(const std::source_location& where, std::string text) {
  std::string_view file = where.file_name();
  if (auto at = file.rfind("src/"); at != std::string_view::npos) file.remove_prefix(at);
  throw Error(ExitCode::internal_error,
              fmt::format("{} ({}:{}, please report this)", text, file, where.line()));
}

}  // namespace llamesh::detail
