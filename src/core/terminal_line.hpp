#pragma once

#include <string_view>

namespace llamesh {

/// Shows `text` as the last line of the terminal behind standard error, in place of the one before;
/// "" removes it. Log lines are printed above it. Any thread.
void show_terminal_line(std::string_view text);

/// Scope in which whole lines are written to standard error, above the terminal's last line. Other
/// threads that want to write wait.
class AboveTerminalLine {
 public:
  AboveTerminalLine();
  ~AboveTerminalLine();
  AboveTerminalLine(const AboveTerminalLine&) = delete;
  AboveTerminalLine& operator=(const AboveTerminalLine&) = delete;
};

}  // namespace llamesh
