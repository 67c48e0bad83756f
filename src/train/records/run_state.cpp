#include "train/records/run_state.hpp"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "core/file.hpp"
#include "core/json.hpp"
#include "core/process.hpp"

namespace llamesh::train {
namespace {

constexpr std::int64_t fruitless_launches_allowed = 2;
constexpr std::int64_t launches_here_allowed = 10;
constexpr std::int64_t max_steps = 1'000'000'000'000'000;  // so that one more does not overflow
constexpr std::int64_t max_ranks = std::numeric_limits<int>::max();
constexpr std::array phase_names{"running", "stopped", "done", "failed"};

std::string now() {
  const auto seconds =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds));
}

/// Returns true if a host to blame for the previous launch's end is not in this one. For a cut
/// link, one of the two is enough.
bool leaves_out_faulty_host(const RunState& before, const std::vector<std::string>& hosts) {
  return !hosts.empty() && std::ranges::any_of(before.faulty_hosts, [&](const auto& host) {
    return std::ranges::find(hosts, host) == hosts.end();
  });
}

std::string fault_of(const RunState& before) {
  return fmt::format("rank {}, {}", fmt::join(before.faulty_ranks, " and "), before.doing);
}

/// Returns the node faults after a launch that gained at most one step.
std::vector<std::string> node_faults_after(const RunState& before,
                                           const std::vector<std::string>& hosts) {
  auto faults = before.node_faults;
  if (!leaves_out_faulty_host(before, hosts)) return faults;
  const auto fault = fault_of(before);
  if (std::erase(faults, fault) == 0) faults.push_back(fault);
  return faults;
}

}  // namespace

std::filesystem::path state_file(const std::filesystem::path& run_folder) {
  return run_folder / "state.json";
}

std::string to_text(const RunState& state) {
  nlohmann::ordered_json json = {{"state", phase_names[static_cast<std::size_t>(state.phase)]},
                                 {"step", state.step},
                                 {"exit_code", static_cast<int>(state.exit_code)},
                                 {"reason", state.reason},
                                 {"doing", state.doing},
                                 {"culprit_ranks", state.faulty_ranks},
                                 {"culprit_hosts", state.faulty_hosts},
                                 {"first_step", state.first_step},
                                 {"starts_here", state.starts_here},
                                 {"node_faults", state.node_faults},
                                 {"starts", state.starts},
                                 {"steps", state.steps},
                                 {"seconds_needed", state.seconds_needed},
                                 {"job", number_in_environment("SLURM_JOB_ID")},
                                 {"restarts", number_in_environment("SLURM_RESTART_COUNT")},
                                 {"host", this_process().host},
                                 {"time", now()}};
  if (state.memory_step > 0) json["memory_step"] = state.memory_step;
  if (state.joules) json["joules"] = *state.joules;
  if (state.best) json["best"] = {{"step", state.best->step}, {"loss", state.best->loss}};
  if (state.goodput.share()) json["goodput"] = to_json(state.goodput);
  // A reason may name a file, and a file name need not be UTF-8.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::optional<RunState> parse_run_state(std::string_view text) {
  try {
    const auto json = parse_json(text, "state.json");
    const auto name = json.at("state").get<std::string>();
    const auto* const phase = std::ranges::find(phase_names, name);
    if (phase == phase_names.end()) return {};
    RunState state;
    state.phase = static_cast<RunPhase>(phase - phase_names.begin());
    state.step = to_integer(json.at("step"), 0, max_steps);
    state.first_step = to_integer(json.at("first_step"), 0, max_steps);
    state.starts_here = to_integer(json.at("starts_here"), 1, max_steps);
    state.node_faults = json.value("node_faults", std::vector<std::string>());
    state.starts =
        to_integer(json.value("starts", nlohmann::json(state.starts_here)), 1, max_steps);
    state.steps = to_integer(json.value("steps", nlohmann::json(0)), 0, max_steps);
    state.memory_step = to_integer(json.value("memory_step", nlohmann::json(0)), 0, max_steps);
    state.seconds_needed = json.value("seconds_needed", 0.0);
    // Only informational: an invalid value does not invalidate the state.
    if (const auto joules = json.find("joules");
        joules != json.end() && joules->is_number() && joules->get<double>() >= 0)
      state.joules = joules->get<double>();
    if (const auto best = json.find("best"); best != json.end() && best->is_object())
      state.best = {to_integer(best->at("step"), 0, max_steps), best->at("loss").get<double>()};
    if (const auto goodput = json.find("goodput"); goodput != json.end())
      state.goodput = parse_goodput(*goodput).value_or(Goodput());
    state.exit_code = static_cast<ExitCode>(to_integer(json.at("exit_code"), 0, 255));
    state.reason = json.at("reason");
    state.doing = json.value("doing", "");
    for (const auto& rank : json.value("culprit_ranks", nlohmann::json::array()))
      state.faulty_ranks.push_back(static_cast<int>(to_integer(rank, 0, max_ranks)));
    state.faulty_hosts = json.value("culprit_hosts", std::vector<std::string>());
    state.job = json.value("job", "");
    state.restarts = json.value("restarts", "");
    state.time = json.value("time", "");
    return state;
  } catch (const std::exception&) {
    return {};
  }
}

std::optional<RunState> read_run_state(const std::filesystem::path& run_folder) {
  const auto file = state_file(run_folder);
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, ignored))) return {};
  return parse_run_state(read_file(file, 1 << 20));
}

void write_run_state(const std::filesystem::path& run_folder, const RunState& state) {
  write_durably(state_file(run_folder), to_text(state));
}

RunState start_after(const std::optional<RunState>& before, std::int64_t step, bool scheduled,
                     const std::vector<std::string>& hosts) {
  RunState state;
  state.step = state.first_step = step;
  if (before) {
    state.seconds_needed = before->seconds_needed;
    state.starts = before->starts + 1;
    state.joules = before->joules;
    state.best = before->best;
    state.goodput = before->goodput;
  }
  const auto gained = before ? step - before->first_step : 0;
  if (before && before->phase != RunPhase::done && (gained == 0 || gained == 1)) {
    state.starts_here = before->starts_here + 1;
    state.node_faults = node_faults_after(*before, hosts);
  }
  const auto counted = state.starts_here - std::ssize(state.node_faults);
  if (scheduled &&
      (counted > fruitless_launches_allowed || state.starts_here > launches_here_allowed))
    fail(ExitCode::no_progress,
         "stopping: the last {} launches gained at most one step each (the last from step {} to "
         "{}, ended with: {}); fix the cause (e.g. a walltime too short for two steps), then "
         "remove state.json from the run folder to start again",
         state.starts_here - 1, before->first_step, step,
         before->reason.empty() ? "no reason known" : before->reason);
  return state;
}

}  // namespace llamesh::train
