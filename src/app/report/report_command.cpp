#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "app/program/options.hpp"
#include "app/report/report.hpp"
#include "app/status/run_status.hpp"
#include "core/error.hpp"

namespace llamesh::app {
namespace {

/// Draws the runs, again every `watch` seconds until all have ended; 0: once.
int report(const std::vector<std::string>& folders, const std::string& file, Existing existing,
           int watch) {
  validate(watch >= 0, "--watch={}: give seconds", watch);
  validate(watch == 0 || file != "-", "--watch cannot write to standard output; name a file");
  const auto all = [&](const auto& holds) {
    return std::ranges::all_of(folders,
                               [&](const auto& folder) { return holds(read_status(folder)); });
  };
  std::string told;
  while (true) {
    const bool ended = watch == 0 || all([](const RunStatus& run) { return run.ended(); });
    std::string line = "waiting for the first step";
    if (ended || all([](const RunStatus& run) { return run.step.value_or(0) > 0; }))
      line = write_report(folders, file, existing, ended ? 0 : watch).string();
    if (line != "-" && line != told) fmt::print("{}\n", line);
    std::fflush(stdout);
    if (ended) return 0;
    told = line;
    std::this_thread::sleep_for(std::chrono::seconds(watch));
  }
}

}  // namespace

void declare_report(CLI::App& parser, Run& chosen) {
  auto& command =
      add_command(parser, "report", "Draw a run's metrics as an HTML page, or compare several runs",
                  {"llamesh report runs/tiny --watch",
                   "llamesh report runs/first runs/second --output both.html"});
  auto& [folders, file, existing, watch] = runs(command, chosen, report);
  command.add_option("RUN", folders, "Run folders")->required();
  command.add_option("--output", file,
                     "Default: RUN/report.html; for several runs ./comparison.html; - is standard "
                     "output");
  command.add_flag("--watch{30}", watch,
                   "Draw it again every 30 seconds, or --watch=SECONDS, until the runs end; the "
                   "open page follows");
  add_force(command, existing);
}

}  // namespace llamesh::app
