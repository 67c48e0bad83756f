#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llamesh::train {

/// Returns the current width of the terminal behind a file descriptor, which may be resized at any
/// time; 80 if there is none.
int terminal_columns(int fd);

/// Formats the progress line for a terminal with `columns` columns: a bar, then as many fields as
/// fit, most important first, and the time left. Shorter than `columns`, so that no terminal wraps
/// it. `done` goes from 0 to 1.
std::string bar_line(double done, std::vector<std::string> fields, double seconds_left,
                     int columns);

/// Progress display for long work: a log line every `every_steps`, and once 5 s have passed since
/// the last one, or later 1 % of the time so far. A terminal shows only these latter lines, and
/// below them a bar that is redrawn at every step, at the terminal's current width; log.txt has
/// them all. Silent on ranks other than 0.
class ProgressBar {
 public:
  ProgressBar(std::int64_t first_step, std::int64_t total_steps, std::int64_t every_steps);
  ~ProgressBar();  ///< Removes the bar.
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Shows a completed step, described by `fields`, most important first, in ASCII. `seconds`
  /// counts from the start of the first step.
  void show(std::int64_t step, const std::vector<std::string>& fields, double seconds);

 private:
  std::int64_t first_step_;
  std::int64_t total_steps_;
  std::int64_t every_steps_;
  bool terminal_;
  double logged_at_ = 0;  ///< seconds since the start
};

}  // namespace llamesh::train
