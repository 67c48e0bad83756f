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

/// Progress display for long work: a log line every `every_steps`. On a terminal, only log.txt gets
/// these lines, and one terminal line is redrawn at every step, at the terminal's current width.
/// Without a terminal (mpirun, a batch job) it also logs a line once 5 s have passed since the last
/// one, or later 1 % of the time so far. Silent on ranks other than 0.
class ProgressBar {
 public:
  ProgressBar(std::int64_t first_step, std::int64_t total_steps, std::int64_t every_steps);
  ~ProgressBar();  ///< Ends the terminal line.
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Shows a completed step, described by `fields`, most important first, in ASCII. `seconds`
  /// counts from the start of the first step.
  void show(std::int64_t step, const std::vector<std::string>& fields, double seconds);
  /// Clears the bar's line, so that other output can be printed.
  void clear();

 private:
  std::int64_t first_step_;
  std::int64_t total_steps_;
  std::int64_t every_steps_;
  bool terminal_;
  bool drawn_ = false;
  double logged_at_ = 0;  ///< seconds since the start
};

}  // namespace llamesh::train
