#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "app/commands/commands.hpp"
#include "app/json_output.hpp"
#include "app/status/run_status.hpp"
#include "core/printable.hpp"
#include "train/terminal/progress_bar.hpp"

namespace llamesh::app {
namespace {

constexpr std::chrono::seconds between_looks{2};

/// Shows a status in place of the one before on a terminal, else below it. A line is cut at the
/// terminal's edge, since the cursor could not find back over one that wraps.
class Screen {
 public:
  void show(const std::vector<std::string>& lines) {
    const bool terminal = isatty(STDOUT_FILENO) == 1;
    if (terminal && shown_ > 0) fmt::print("\033[{}A\033[J", shown_);
    const auto columns = static_cast<std::size_t>(
        terminal ? std::max(1, train::terminal_columns(STDOUT_FILENO) - 1) : 0);
    for (const auto& line : lines) {
      const auto text = printable(line);
      fmt::print("{}\n", terminal ? text.substr(0, columns) : text);
    }
    shown_ = lines.size();
  }

 private:
  std::size_t shown_ = 0;
};

/// What changes as time passes, without anything having happened.
Json without_times(Json status) {
  status.erase("eta_seconds");
  if (status["checkpoint"].is_object()) status["checkpoint"].erase("age_seconds");
  return status;
}

}  // namespace

int status(const std::string& run_folder, Output output, Watch watch) {
  Screen screen;
  const bool redraws = output == Output::text && isatty(STDOUT_FILENO) == 1;
  Json before;
  while (true) {
    const auto now = read_status(run_folder);
    const auto json = to_json(now);
    if (auto happened = without_times(json); redraws || happened != before) {
      if (output == Output::json)
        print_json(json);
      else
        screen.show(to_lines(now, run_folder));
      std::fflush(stdout);
      before = std::move(happened);
    }
    if (watch == Watch::no || now.ended() || std::ferror(stdout) != 0) return 0;
    std::this_thread::sleep_for(between_looks);
  }
}

}  // namespace llamesh::app
