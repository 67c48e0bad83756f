#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace llamesh::app {

/// A program that runs beside this one; it is killed with the object. Its standard input is empty.
class Child {
 public:
  /// Starts the program in the first word, found along PATH. Throws (exit 78) if it cannot be
  /// started.
  explicit Child(std::vector<std::string> command);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Returns the exit code once the program has ended, 128 + the signal if one has killed it. Does
  /// not wait.
  std::optional<int> exit_code();
  /// Sends a signal, unless the program has ended.
  void send(int signal);

 private:
  pid_t process_ = 0;
  std::optional<int> exit_code_;
};

}  // namespace llamesh::app
