#include "app/report/report.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>

#include "app/report/chart.hpp"
#include "app/report/report_script.hpp"
#include "app/report/report_style.hpp"
#include "app/report/summary.hpp"
#include "core/file.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_runs = 12;  // distinguishable in a chart
/// Bytes of metrics.jsonl read at the end of a run: two seconds of work, since the job may be about
/// to be killed.
constexpr std::int64_t max_at_end = 64 << 20;
constexpr std::size_t longest_title = 4096;  // a path

std::string head(const std::string& title, const std::string& facts) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>{0} – llamesh</title>\n<style>{1}</style></head><body><main>\n<h1>{0}</h1>\n"
      "<p class=\"facts\">{2}</p>\n",
      escaped(title), report_style, facts);
}

/// Returns true if the file is a page that head() begins; false if it cannot be read.
bool is_report(const fs::path& path) noexcept {
  try {
    const auto page = head("", "");
    std::string begin(page.size() + longest_title, '\0');
    const auto file = Descriptor::to_read(path);
    begin.resize(static_cast<std::size_t>(file.read_some(0, begin.data(), std::ssize(begin))));
    return begin.starts_with(std::string_view(page).substr(0, page.find("<title>"))) &&
           begin.find(" – llamesh</title>") != begin.npos;
  } catch (const std::exception&) {
    return false;
  }
}

std::string json_array(const std::vector<double>& numbers) {
  std::string text;
  for (const double number : numbers)
    text += fmt::format("{}{:.6g}", text.empty() ? "" : ",", number);
  return "[" + text + "]";
}

std::string charts(const std::vector<Chart>& all, const Clocks& clocks) {
  std::string out = fmt::format(
      "<form id=\"axes\" hidden>x-axis: <label><input type=\"radio\" name=\"x\" value=\"byStep\" "
      "checked>steps</label> <label><input type=\"radio\" name=\"x\" value=\"byTime\">wall-clock "
      "time ({}), without pauses between starts</label></form>\n<div class=\"charts\">\n",
      clocks.unit);
  for (const Chart& chart : all) out += draw(chart, clocks);
  return out + "</div>\n";
}

/// Returns the script, after its data (numbers only).
std::string tail(const Clocks& clocks) {
  std::string runs;
  for (const Clock& clock : clocks.of_runs)
    runs += fmt::format("{}[{},{}]", runs.empty() ? "" : ",", json_array(clock.steps),
                        json_array(clock.times));
  return fmt::format(
      "</main>\n<script type=\"application/json\" id=\"clocks\">{{\"unit\":\"{}\",\"runs\":[{}]}}"
      "</script>\n<script>{}</script>\n</body></html>\n",
      clocks.unit, runs, report_script);
}

std::string unreadable_note(const ReportedRun& run) {
  const std::size_t lines = run.metrics.unreadable;
  if (lines == 0) return "";
  return fmt::format("<p class=\"note\">{}: {} of metrics.jsonl skipped: not a valid record.</p>\n",
                     escaped(run.name), counted(static_cast<std::int64_t>(lines), "line"));
}

std::string differences_table(const std::vector<ReportedRun>& runs) {
  std::vector<std::string> configs;
  for (const auto& run : runs) configs.push_back(run.config);
  const auto differences = config_differences(configs);
  if (differences.empty()) return "<h2>Inputs</h2>\n<p class=\"none\">no difference</p>\n";
  std::string rows = "<tr><th>key</th>";
  for (const auto& run : runs) rows += fmt::format("<th>{}</th>", escaped(run.name));
  rows += "</tr>\n";
  for (const auto& [key, values] : differences) {
    rows += fmt::format("<tr><td>{}</td>", escaped(key));
    for (const auto& value : values)
      rows += fmt::format("<td>{}</td>", value.empty() ? "–" : escaped(value));
    rows += "</tr>\n";
  }
  return "<h2>Inputs that differ</h2>\n<div class=\"table\"><table>" + rows + "</table></div>\n";
}

/// Returns folder names, or their paths if the names are ambiguous.
std::vector<std::string> names_of(const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const auto& folder : folders)
    names.push_back(
        fs::weakly_canonical(fs::path(folder) / "metrics.jsonl").parent_path().filename().string());
  return std::set(names.begin(), names.end()).size() == names.size() ? names : folders;
}

ReportedRun read_run(const fs::path& folder, const std::string& name) {
  ReportedRun run{
      .name = name, .config = {}, .metrics = train::read_metrics(folder / "metrics.jsonl")};
  std::error_code ignored;
  const auto config = folder / "config.yaml";
  if (fs::exists(config, ignored)) run.config = read_file(config, 16 << 20);
  if (const auto state = train::read_run_state(folder); state && state->goodput.share())
    run.goodput = state->goodput;
  return run;
}

}  // namespace

std::string report_page(const ReportedRun& run) {
  const auto clocks = clocks_of({run});
  std::string out = head(run.name, facts(run)) + tiles(run.metrics) +
                    charts(charts_of(run.metrics), clocks) + traffic_table(run.metrics) +
                    goodput_table(run) + starts_table(run.metrics) + unreadable_note(run);
  if (!run.config.empty())
    out +=
        "<details><summary>config.yaml</summary><pre>" + escaped(run.config) + "</pre></details>\n";
  return out + tail(clocks);
}

std::string comparison_page(const std::vector<ReportedRun>& runs) {
  const auto clocks = clocks_of(runs);
  std::string out = head(fmt::format("{} runs", runs.size()), "") + summary_table(runs) +
                    differences_table(runs) + charts(comparing_charts(runs), clocks);
  for (const auto& run : runs) out += unreadable_note(run);
  return out + tail(clocks);
}

fs::path write_report(const std::vector<std::string>& run_folders, const std::string& file,
                      Existing existing) {
  expects(!run_folders.empty(), "no run to report");
  validate(run_folders.size() <= max_runs, "{} runs are too many for one report; give {} at most",
           run_folders.size(), max_runs);
  const bool one = run_folders.size() == 1;
  const fs::path path = !file.empty() ? fs::path(file)
                        : one         ? fs::path(run_folders.front()) / "report.html"
                                      : fs::path("comparison.html");
  const auto names = names_of(run_folders);
  std::vector<ReportedRun> runs;
  for (std::size_t i = 0; i < run_folders.size(); ++i)
    runs.push_back(read_run(run_folders[i], names[i]));
  const OutputFile output(path.string(), is_report(path) ? Existing::replace : existing);
  write_durably(output.path(), one ? report_page(runs.front()) : comparison_page(runs));
  output.finish();
  return path;
}

fs::path write_report_quietly(const fs::path& run_folder) noexcept {
  try {
    const auto metrics = run_folder / "metrics.jsonl";
    std::error_code ignored;
    if (!fs::exists(metrics, ignored)) return {};
    if (Descriptor::to_read(metrics).bytes() > max_at_end)
      spdlog::info(
          "no report.html yet, since metrics.jsonl is long; draw it with llamesh report {}",
          run_folder.string());
    else if (!train::read_lines(metrics).steps.empty())
      return write_report({run_folder.string()});
  } catch (const std::exception& error) {
    spdlog::warn("no report.html: {}", error.what());
  }
  return {};
}

}  // namespace llamesh::app
