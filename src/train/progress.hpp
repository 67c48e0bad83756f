#pragma once

#include <cstdint>
#include <string>

namespace llamesh::train {

/// What a person sees of a run: on a terminal one line that is drawn again and again with a bar and
/// the time left, elsewhere (a job's log) a plain line every `every_steps`. Silent on ranks other
/// than 0.
class Progress {
 public:
  Progress(std::int64_t first_step, std::int64_t total_steps, std::int64_t every_steps);
  ~Progress();  ///< Ends the terminal line.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// A step is done; `seconds` since the start of the first one.
  void show(std::int64_t step, const std::string& text, double seconds);
  /// Clears the bar's line, so that something else can be printed.
  void clear();

 private:
  std::int64_t first_step_;
  std::int64_t total_steps_;
  std::int64_t every_steps_;
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace llamesh::train
