#include "train/run_state.hpp"

#include <fmt/chrono.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "core/process.hpp"

namespace llamesh::train {
namespace {

constexpr std::int64_t fruitless_starts_allowed = 2;
constexpr std::array phase_names{"running", "stopped", "done", "failed"};

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string now() {
  const auto seconds =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds));
}

}  // namespace

std::filesystem::path state_file(const std::filesystem::path& run_folder) {
  return run_folder / "state.json";
}

std::optional<RunState> read_run_state(const std::filesystem::path& run_folder) {
  const auto file = state_file(run_folder);
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, ignored))) return {};
  const auto json =
      nlohmann::json::parse(read_file(file, 1 << 20), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  try {
    RunState state;
    const auto name = json.at("state").get<std::string>();
    const auto* const phase = std::ranges::find(phase_names, name);
    if (phase == phase_names.end()) return {};
    state.phase = static_cast<RunPhase>(phase - phase_names.begin());
    state.step = json.at("step");
    state.first_step = json.at("first_step");
    state.starts_here = json.at("starts_here");
    state.seconds_needed = json.value("seconds_needed", 0.0);
    state.exit_code = static_cast<ExitCode>(json.at("exit_code").get<int>());
    state.reason = json.at("reason");
    return state;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

void write_run_state(const std::filesystem::path& run_folder, const RunState& state) {
  const nlohmann::ordered_json json = {
      {"state", phase_names[static_cast<std::size_t>(state.phase)]},
      {"step", state.step},
      {"exit_code", static_cast<int>(state.exit_code)},
      {"reason", state.reason},
      {"first_step", state.first_step},
      {"starts_here", state.starts_here},
      {"seconds_needed", state.seconds_needed},
      {"job", environment("SLURM_JOB_ID")},
      {"restarts", environment("SLURM_RESTART_COUNT")},
      {"host", this_process().host},
      {"time", now()}};
  write_durably(state_file(run_folder), json.dump(2) + "\n");
}

void record_failure(const std::filesystem::path& run_folder, ExitCode code,
                    const std::string& reason) noexcept {
  try {
    auto state = read_run_state(run_folder).value_or(RunState{});
    state.phase = code == ExitCode::stopped_early ? RunPhase::stopped : RunPhase::failed;
    state.exit_code = code;
    state.reason = reason;
    write_run_state(run_folder, state);
  } catch (const std::exception&) {
    return;
  }
}

RunState start_after(const std::optional<RunState>& before, std::int64_t step, bool scheduled) {
  RunState state;
  state.step = state.first_step = step;
  if (before) state.seconds_needed = before->seconds_needed;
  const auto gained = before ? step - before->first_step : 0;
  if (before && before->phase != RunPhase::done && (gained == 0 || gained == 1))
    state.starts_here = before->starts_here + 1;
  if (scheduled && state.starts_here > fruitless_starts_allowed)
    fail(ExitCode::no_progress,
         "{} starts in a row gained a step at most, the last one from step {} to {} (it ended by: "
         "{}); mend that (a walltime too short for two steps has to be longer), then remove "
         "state.json from the run folder to start again",
         state.starts_here - 1, before->first_step, step,
         before->reason.empty() ? "no reason known" : before->reason);
  return state;
}

}  // namespace llamesh::train
