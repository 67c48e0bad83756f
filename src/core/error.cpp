#include "core/error.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

#include "core/file.hpp"
#include "core/terminal_line.hpp"
#include "core/text.hpp"

namespace llamesh {

namespace {

/// Returns true for errors from writing to a file.
bool is_of_the_disk(const std::error_code& code) {
  for (const auto fault :
       {std::errc::no_space_on_device, std::errc::io_error, std::errc::file_too_large,
        std::errc::broken_pipe, std::errc::bad_file_descriptor})
    if (code == fault) return true;
  return false;
}

}  // namespace

Error as_error(const std::exception& any) {
  if (const auto* ours = dynamic_cast<const Error*>(&any)) return *ours;
  if (const auto* path = dynamic_cast<const std::filesystem::filesystem_error*>(&any))
    return {exit_code_of(path->code()),
            fmt::format("{}: {}", path->path1().string(), path->code().message())};
  if (const auto* system = dynamic_cast<const std::system_error*>(&any)) {
    if (is_of_the_disk(system->code()))  // thrown by {fmt}
      return {ExitCode::io_failure, system->what()};
    if (system->code() == std::errc::resource_unavailable_try_again)
      return {ExitCode::bad_input,
              "the system starts no more threads for this process; raise its limit (ulimit -u, or "
              "pids.max of the cgroup), or lower train.threads or the ranks of this node"};
  }
  if (dynamic_cast<const std::bad_alloc*>(&any) != nullptr)
    return {ExitCode::bad_input, "the host's memory does not suffice for what was asked"};
  return {ExitCode::internal_error,
          fmt::format("{} (this is a bug, please report it)", any.what())};
}

void print_error(const std::string& text) noexcept {
  show_terminal_line("");  // the program ends
  std::fprintf(stderr, "llamesh: %s\n", text.c_str());
}

namespace detail {

namespace {

/// Replaces line ends, shows terminal escape sequences and shortens long text: messages quote files
/// and the command line.
std::string one_line(std::string text) {
  constexpr std::size_t longest = 4000;
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  text = with_short_words(printable(text));
  if (text.size() > longest) text.replace(longest / 2, text.size() - longest, " [...] ");
  return text;
}

}  // namespace

void throw_user_error(ExitCode code, std::string text) {
  throw Error(code, one_line(std::move(text)));
}

void throw_unfit_host(std::string text) {
  throw UnfitHost(ExitCode::bad_input, one_line(std::move(text)));
}

void throw_bug(const std::source_location& where, std::string text) {
  std::string_view file = where.file_name();
  if (auto at = file.rfind("src/"); at != std::string_view::npos) file.remove_prefix(at);
  throw Error(ExitCode::internal_error,
              fmt::format("{} ({}:{}, please report this)", text, file, where.line()));
}

}  // namespace detail
}  // namespace llamesh
