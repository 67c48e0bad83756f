#include <fmt/format.h>

#include "app/program/options.hpp"
#include "app/report/report.hpp"

namespace llamesh::app {
namespace {

int report(const std::vector<std::string>& runs, const std::string& file, Existing existing) {
  const auto written = write_report(runs, file, existing);
  if (written != "-") fmt::print("{}\n", written.string());
  return 0;
}

}  // namespace

void declare_report(CLI::App& parser, Run& chosen) {
  auto& command = add_command(
      parser, "report", "Draw a run's metrics as an HTML page, or compare several runs",
      {"llamesh report runs/tiny", "llamesh report runs/first runs/second --output both.html"});
  auto& [folders, file, existing] = runs(command, chosen, report);
  command.add_option("RUN", folders, "Run folders")->required();
  command.add_option("--output", file,
                     "Default: RUN/report.html; for several runs ./comparison.html; - is standard "
                     "output");
  add_force(command, existing);
}

}  // namespace llamesh::app
