#include "app/report/report.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <set>

#include "app/report/page_data.hpp"
#include "core/file.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_runs = 24;  // report.js has six colors and four kinds of lines
/// Bytes of metrics.jsonl read at the end of a run: two seconds of work, since the job may be about
/// to be killed.
constexpr std::int64_t max_at_end = 64 << 20;

/// Returns true if the file is a report, also one by an earlier version; false if it cannot be
/// read.
bool is_report(const fs::path& path) noexcept {
  try {
    std::string begin(8192, '\0');
    const auto file = Descriptor::to_read(path);
    begin.resize(static_cast<std::size_t>(file.read_some(0, begin.data(), std::ssize(begin))));
    return begin.starts_with("<!doctype html>\n<html lang=\"en\"><head><meta") &&
           begin.find(" – llamesh</title>") != begin.npos;
  } catch (const std::exception&) {
    return false;
  }
}

/// Writes JSON in which nothing can end the page's <script>.
std::string script_text(const Json& data) {
  std::string text;
  for (const char c : data.dump(-1, ' ', false, Json::error_handler_t::replace))
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  return text;
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

std::string report_page(const std::vector<ReportedRun>& runs, int refresh) {
  return std::string(page_before_data) + script_text(page_data(runs, refresh)) + page_after_data;
}

fs::path write_report(const std::vector<std::string>& run_folders, const std::string& file,
                      Existing existing, int refresh) {
  expects(!run_folders.empty(), "no run to report");
  validate(run_folders.size() <= max_runs, "{} runs are too many for one report; give at most {}",
           run_folders.size(), max_runs);
  const bool one = run_folders.size() == 1;
  fs::path path = !file.empty() ? fs::path(file)
                  : one         ? fs::path(run_folders.front()) / "report.html"
                                : fs::path("comparison.html");
  const auto names = names_of(run_folders);
  std::vector<std::future<ReportedRun>> readers;
  for (std::size_t i = 0; i < run_folders.size(); ++i)
    readers.push_back(std::async(std::launch::async, read_run, run_folders[i], names[i]));
  std::vector<ReportedRun> runs;
  for (auto& reader : readers) runs.push_back(reader.get());
  const OutputFile output(path.string(), is_report(path) ? Existing::replace : existing);
  write_durably(output.path(), report_page(runs, refresh));
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
