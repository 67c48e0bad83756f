#include "app/supervise/bad_nodes.hpp"

#include <fmt/chrono.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "core/process.hpp"

namespace llamesh::app {
namespace {

std::vector<NodeFailure> parse(const std::string& text, const std::filesystem::path& file) {
  std::vector<NodeFailure> failures;
  const auto json = parse_json(text, file.string());
  try {
    for (const auto& entry : json.at("failures"))
      failures.push_back({.host = entry.at("host"),
                          .reason = entry.value("reason", ""),
                          .time = entry.value("time", ""),
                          .job = entry.value("job", "")});
  } catch (const nlohmann::json::exception&) {
    fail(ExitCode::bad_input,
         R"(expected {{"failures": [{{"host": NAME, "reason": STRING, ...}}]}})");
  }
  return failures;
}

std::string to_text(const std::vector<NodeFailure>& failures) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [host, reason, time, job] : failures)
    list.push_back({{"host", host}, {"reason", reason}, {"time", time}, {"job", job}});
  const nlohmann::ordered_json json{{"failures", std::move(list)}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string_view short_name(std::string_view host) {
  return host.substr(0, host.find('.'));
}

}  // namespace

bool is_same_host(std::string_view a, std::string_view b) {
  const bool has_both_domains = a.find('.') != a.npos && b.find('.') != b.npos;
  return has_both_domains ? a == b : short_name(a) == short_name(b);
}

BadNodes::BadNodes(const std::filesystem::path& run_folder) : file_(run_folder / "bad_nodes.json") {
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file_, ignored))) return;
  try {
    failures_ = parse(read_file(file_, 1 << 20), file_);
  } catch (const std::exception& error) {
    spdlog::warn("ignoring {}: {}; correct or remove the file", file_.string(), error.what());
  }
}

void BadNodes::blame(std::string_view host, std::string_view reason) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  failures_.push_back({.host = std::string(host),
                       .reason = std::string(reason),
                       .time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)),
                       .job = number_in_environment("SLURM_JOB_ID")});
  try {
    write_durably(file_, to_text(failures_));
  } catch (const Error& error) {  // this job remembers it
    spdlog::warn("cannot record the failure of {} for later jobs: {}", host, error.what());
  }
}

std::ptrdiff_t BadNodes::count(std::string_view host) const {
  return std::ranges::count_if(
      failures_, [&](const NodeFailure& failure) { return is_same_host(failure.host, host); });
}

std::vector<std::string> BadNodes::choose(const std::vector<std::string>& usable,
                                          std::size_t max_nodes) const {
  std::vector<std::string> chosen;
  for (const std::ptrdiff_t failures : {0, 1})
    for (const auto& node : usable)
      if (chosen.size() < max_nodes && count(node) == failures) chosen.push_back(node);
  std::vector<std::string> in_order;
  std::ranges::copy_if(usable, std::back_inserter(in_order), [&](const std::string& node) {
    return std::ranges::find(chosen, node) != chosen.end();
  });
  return in_order;
}

}  // namespace llamesh::app
