#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llamesh::train {

/// Of the terminal behind a file descriptor at this moment, since it may be resized; 80 where there
/// is none.
int terminal_columns(int fd);

/// The progress line for a terminal of `columns` columns: a bar, then as many of the fields and the
/// time left as fit, the most important first. Shorter than `columns`, so that no terminal wraps
/// it. `done` goes from 0 to 1.
std::string bar_line(double done, std::vector<std::string> fields, double seconds_left,
                     int columns);

/// Shows the progress of long work: a line of the log every `every_steps`. On a terminal only
/// log.txt gets these lines, and one line of the terminal is redrawn at every step, as wide as the
/// terminal is then. Without a terminal (mpirun, a batch job) it also logs a line whenever 5 s have
/// passed since the last, or later 1 % of the time so far. Silent on ranks other than 0.
class ProgressBar {
 public:
  ProgressBar(std::int64_t first_step, std::int64_t total_steps, std::int64_t every_steps);
  ~ProgressBar();  ///< Ends the terminal line.
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// A step is done, described by `fields`, the most important first, in ASCII. `seconds` since the
  /// start of the first one.
  void show(std::int64_t step, const std::vector<std::string>& fields, double seconds);
  /// Clears the bar's line, so that something else can be printed.
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
