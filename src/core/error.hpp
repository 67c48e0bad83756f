#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace llamesh {

/// The program's exit code; a scheduler decides by it whether to run the job again
/// (docs/exit-codes.md). Values follow sysexits.h where it has one.
enum class ExitCode : int {
  done = 0,
  internal_error = 70,  ///< a bug, or a rank that died
  io_failure = 74,      ///< the previous checkpoint remains
  stopped_early = 75,   ///< stopped with a checkpoint: submit again
  bad_input = 78,       ///< do not restart before the input is fixed
  no_progress = 93,     ///< diverged, or no progress over restarts: do not restart
};

/// An error with the exit code that it leads to. `what()` is one line: what is wrong, with the
/// numbers, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// Converts any exception to an Error: an Error stays as it is; a system error about a path is bad
/// input or, where the disk is at fault, an I/O failure, as is an error of writing; too little
/// memory and too few threads are bad input; all else is a bug.
Error as_error(const std::exception& any);

/// Prints "llamesh: <text>" as a line to standard error, and ignores a failure to write it: the
/// caller is about to end the process.
void print_error(const std::string& text) noexcept;

/// A format string that remembers where it was written. Implicit, so that callers write a literal.
template <class... Args>
struct Message {
  template <class Text>
  // NOLINTNEXTLINE(google-explicit-constructor)
  consteval Message(const Text& literal,
                    std::source_location location = std::source_location::current())
      : text(literal), where(location) {}

  fmt::format_string<Args...> text;
  std::source_location where;
};

namespace detail {
[[noreturn]] void throw_user_error(ExitCode code, std::string text);
[[noreturn]] void throw_bug(const std::source_location& where, std::string text);
}  // namespace detail

/// Throws a user error (bad input, exit 78) unless `ok`. The text says what is wrong, with both
/// numbers, and what to do; it never needs a source line to be understood.
template <class... Args>
void validate(bool ok, Message<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!ok)
    detail::throw_user_error(ExitCode::bad_input,
                             fmt::format(message.text, std::forward<Args>(args)...));
}

/// Throws a user error with the given exit code.
template <class... Args>
[[noreturn]] void fail(ExitCode code, Message<std::type_identity_t<Args>...> message,
                       Args&&... args) {
  detail::throw_user_error(code, fmt::format(message.text, std::forward<Args>(args)...));
}

/// Throws an internal error (a bug of llamesh) unless `ok`; the text carries file and line.
template <class... Args>
void expects(bool ok, Message<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!ok) detail::throw_bug(message.where, fmt::format(message.text, std::forward<Args>(args)...));
}

}  // namespace llamesh
