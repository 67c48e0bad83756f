#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace llamesh {

/// Exit code; a scheduler uses it to decide whether to rerun the job (docs/exit-codes.md). Follows
/// sysexits.h where it has a matching value.
enum class ExitCode : int {
  done = 0,
  internal_error = 70,  ///< a bug, or a rank died
  io_failure = 74,      ///< the previous checkpoint is intact
  stopped_early = 75,   ///< stopped with a checkpoint: resubmit
  bad_input = 78,       ///< fix the input before restarting
  no_progress = 93,     ///< diverged, or no progress over restarts: do not restart
};

/// An error with its exit code. `what()` is one line: what is wrong, with the numbers, and what to
/// do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// Error because this host lacks something that other hosts may have, for example room in /dev/shm:
/// `llamesh supervise` takes another node instead.
class UnfitHost : public Error {
 public:
  using Error::Error;
};

/// Converts any exception to an Error. An Error is returned unchanged. A system error about a path
/// is bad input, or an I/O failure if the disk is at fault; so is a write error. Running out of
/// memory or threads is bad input. Anything else is a bug.
Error as_error(const std::exception& any);

/// Prints "llamesh: <text>" to standard error. Ignores write failures, because the caller is about
/// to end the process.
void print_error(const std::string& text) noexcept;

/// A format string that records its source location. Implicit, so that callers can pass a literal.
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
[[noreturn]] void throw_unfit_host(std::string text);
[[noreturn]] void throw_bug(const std::source_location& where, std::string text);
}  // namespace detail

/// Throws a user error (bad input, exit 78) unless `ok`. The text says what is wrong, with both
/// numbers, and what to do; it must make sense without the source.
template <class... Args>
void validate(bool ok, Message<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!ok)
    detail::throw_user_error(ExitCode::bad_input,
                             fmt::format(message.text, std::forward<Args>(args)...));
}

/// Throws UnfitHost (exit 78) unless `ok`.
template <class... Args>
void validate_host(bool ok, Message<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!ok) detail::throw_unfit_host(fmt::format(message.text, std::forward<Args>(args)...));
}

/// Throws a user error with the given exit code.
template <class... Args>
[[noreturn]] void fail(ExitCode code, Message<std::type_identity_t<Args>...> message,
                       Args&&... args) {
  detail::throw_user_error(code, fmt::format(message.text, std::forward<Args>(args)...));
}

/// Throws an internal error (a bug in llamesh) unless `ok`; the text includes file and line.
template <class... Args>
void expects(bool ok, Message<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!ok) detail::throw_bug(message.where, fmt::format(message.text, std::forward<Args>(args)...));
}

}  // namespace llamesh
