#include "core/error.hpp"

#include <string_view>

namespace llamesh::detail {

void throw_user_error(ExitCode code, std::string text) {
  throw Error(code, text);
}

void throw_bug(const std::source_location& where, std::string text) {
  std::string_view file = where.file_name();
  if (auto at = file.rfind("src/"); at != std::string_view::npos) file.remove_prefix(at);
  throw Error(ExitCode::internal_error,
              fmt::format("{} ({}:{}, please report this)", text, file, where.line()));
}

}  // namespace llamesh::detail
