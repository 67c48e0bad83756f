#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace llamesh {

/// A program that answers each line of its standard input with one line of its standard output. Its
/// error output is dropped. Signals that ask for an end do not reach it: it must end with its
/// input, and so ends with this process in any case.
class LineProcess {
 public:
  /// Starts the program in the first word, found along PATH, without a shell. Throws a user error
  /// if it cannot be started.
  explicit LineProcess(const std::vector<std::string>& command);
  ~LineProcess();
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  /// Sends a line, without its end, and returns the answer; empty if the program has ended.
  std::string ask(std::string_view line);

 private:
  /// Sends as much of the text as there is room for, and removes it; false if nobody reads it.
  bool send(std::string_view& text) const;
  /// Takes what has arrived; false at the end.
  bool receive();

  int socket_ = -1;
  pid_t process_ = 0;
  std::string received_;  ///< behind the last answer
};

}  // namespace llamesh
