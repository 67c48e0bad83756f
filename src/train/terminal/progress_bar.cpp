#include "train/terminal/progress_bar.hpp"

#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "core/log.hpp"
#include "core/process.hpp"
#include "core/terminal_line.hpp"
#include "core/text.hpp"

namespace llamesh::train {
namespace {

constexpr double longest_silence = 5;  // seconds

}  // namespace

int terminal_columns(int fd) {
  winsize size{};
  const bool known = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string bar_line(double done, std::vector<std::string> fields, double seconds_left,
                     int columns) {
  const auto room = static_cast<std::size_t>(std::max(0, columns - 1));
  const auto cells = static_cast<std::size_t>(std::clamp(columns / 5, 0, 24));
  const auto full =
      static_cast<std::size_t>(static_cast<double>(cells) * std::clamp(done, 0.0, 1.0));
  fields.insert(fields.begin() + std::min<std::ptrdiff_t>(2, std::ssize(fields)),
                clock_text(seconds_left) + " left");
  std::string line = '[' + std::string(full, '#') + std::string(cells - full, '.') + ']';
  std::string_view gap = " ";
  for (const std::string& field : fields) {
    if (gap.size() == 2 && line.size() + 2 + field.size() > room) break;
    line.append(gap).append(field);
    gap = "  ";
  }
  return line.substr(0, room);
}

ProgressBar::ProgressBar(std::int64_t first_step, std::int64_t total_steps,
                         std::int64_t every_steps)
    : first_step_(first_step),
      total_steps_(total_steps),
      every_steps_(std::max<std::int64_t>(1, every_steps)),
      terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (terminal_) show_terminal_line("");
}

void ProgressBar::show(std::int64_t step, const std::vector<std::string>& fields, double seconds) {
  if (this_process().rank != 0) return;
  const bool due = step % every_steps_ == 0;
  const bool overdue = seconds - logged_at_ >= std::max(longest_silence, seconds / 100);
  const auto line = fmt::format("{}", fmt::join(fields, "  "));
  if (overdue || step == total_steps_ || (due && !terminal_)) {
    logged_at_ = seconds;
    spdlog::info("{}", line);
  } else if (due) {
    log_to_file_only(line);
  }
  if (!terminal_) return;
  const auto total = static_cast<double>(std::max<std::int64_t>(1, total_steps_));
  const double left = seconds / static_cast<double>(std::max<std::int64_t>(1, step - first_step_)) *
                      static_cast<double>(total_steps_ - step);
  show_terminal_line(
      bar_line(static_cast<double>(step) / total, fields, left, terminal_columns(STDERR_FILENO)));
}

}  // namespace llamesh::train
