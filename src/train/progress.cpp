#include "train/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/log.hpp"
#include "core/process.hpp"

namespace llamesh::train {

Progress::Progress(std::int64_t first_step, std::int64_t total_steps, std::int64_t every_steps)
    : first_step_(first_step),
      total_steps_(total_steps),
      every_steps_(std::max<std::int64_t>(1, every_steps)),
      terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) std::fputc('\n', stderr);
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void Progress::show(std::int64_t step, const std::string& text, double seconds) {
  if (this_process().rank != 0) return;
  if (!terminal_) {
    if (step % every_steps_ == 0 || step == total_steps_) spdlog::info("{}", text);
    return;
  }
  constexpr std::int64_t width = 24;
  const auto full =
      static_cast<std::size_t>(width * step / std::max<std::int64_t>(1, total_steps_));
  const double left = seconds / static_cast<double>(std::max<std::int64_t>(1, step - first_step_)) *
                      static_cast<double>(total_steps_ - step);
  const auto bar =
      std::string(full, '#') + std::string(static_cast<std::size_t>(width) - full, '.');
  fmt::print(stderr, "\r\033[K[{}] {}  {:.0f} s left", bar, text, left);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace llamesh::train
