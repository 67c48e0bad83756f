#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "app/commands/commands.hpp"
#include "app/program/options.hpp"
#include "app/status/run_status.hpp"
#include "core/text.hpp"
#include "train/terminal/progress_bar.hpp"

namespace llamesh::app {
namespace {

constexpr std::chrono::seconds between_looks{2};

/// Display that replaces the previous status on a terminal, and otherwise appends. Lines are cut at
/// the terminal's edge, since the cursor could not move back over a wrapped line.
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

/// Drops fields that change as time passes without any event.
Json without_times(Json status) {
  if (status.contains("runs")) {
    for (auto& run : status["runs"]) run = without_times(run);
    return status;
  }
  status.erase("eta_seconds");
  if (status["checkpoint"].is_object()) status["checkpoint"].erase("age_seconds");
  return status;
}

/// Result of looking at a run, or at a folder of runs.
struct Look {
  Json json;
  std::vector<std::string> lines;
  bool ended;
};

Look look_at(const std::string& folder) {
  const auto runs = list_runs(folder);
  if (runs.empty()) {
    const auto status = read_status(folder);
    return {to_json(status), to_lines(status, folder), status.ended()};
  }
  const auto goes_on = [](const ListedRun& run) {
    return run.status.phase == "running" || run.status.phase == "starting";
  };
  return {to_json(runs), to_lines(runs), std::ranges::none_of(runs, goes_on)};
}

}  // namespace

int status(const std::string& folder, Output output, Watch watch) {
  Screen screen;
  const bool redraws = output == Output::text && isatty(STDOUT_FILENO) == 1;
  Json before;
  while (true) {
    const auto now = look_at(folder);
    if (auto happened = without_times(now.json); redraws || happened != before) {
      if (output == Output::json)
        print_json(now.json);
      else
        screen.show(now.lines);
      std::fflush(stdout);
      before = std::move(happened);
    }
    if (watch == Watch::no || now.ended || std::ferror(stdout) != 0) return 0;
    std::this_thread::sleep_for(between_looks);
  }
}

void declare_status(CLI::App& parser, Run& chosen) {
  auto& command = add_command(parser, "status",
                              "Show a run's step, speed, newest checkpoint and last failure (from "
                              "any machine that sees its folder)",
                              {"llamesh status runs/tiny --watch", "llamesh status runs"});
  auto& [folder, output, watch] = runs(command, chosen, status);
  command.add_option("RUN", folder, "A run folder, or a folder of runs")->required();
  add_json(command, output);
  command.add_flag_callback(
      "--watch", [&watch = watch] { watch = Watch::yes; },
      "Refresh every two seconds until the run ends");
}

}  // namespace llamesh::app
