#include "app/supervise/launch_end.hpp"

#include <algorithm>
#include <utility>

#include "app/status/run_status.hpp"
#include "core/file.hpp"
#include "train/records/failure.hpp"
#include "train/records/metrics.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;
using train::RunPhase;
using train::RunState;

/// Returns the file's text, or "" if it cannot be read.
std::string text_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  try {
    return read_file(path, 1 << 20);
  } catch (const Error&) {
    return "";
  }
}

std::int64_t last_step(const fs::path& run_folder, const RunState& state) {
  const auto metrics = run_folder / "metrics.jsonl";
  std::error_code ignored;
  if (!fs::is_regular_file(metrics, ignored)) return state.step;
  try {
    return std::max(train::last_step_of(metrics), state.step);
  } catch (const Error&) {  // it cannot be read
    return state.step;
  }
}

/// Returns the host that failure.json blames; empty: none.
std::vector<std::string> host_of(const Json& failure) {
  if (failure.is_null() || failure["host"].is_null()) return {};
  return {failure["host"].get<std::string>()};
}

/// Returns false if failure.json holds an error that may be the fault of another rank.
bool names_faulty_rank(const Json& failure) {
  if (failure["kind"] != "error") return true;
  return failure["detail"].is_string() &&
         train::is_fault_of_reporter(failure["detail"].get_ref<const std::string&>());
}

}  // namespace

LaunchRecord::LaunchRecord(fs::path run_folder)
    : folder_(std::move(run_folder)),
      state_(text_of(train::state_file(folder_))),
      failure_(text_of(train::failure_file(folder_))) {}

bool LaunchRecord::has_started() const {
  return text_of(train::state_file(folder_)) != state_;
}

bool LaunchRecord::has_ended() const {
  const auto text = text_of(train::state_file(folder_));
  if (text == state_) return false;
  const auto state = train::parse_run_state(text);
  return state && state->phase != RunPhase::running;
}

LaunchEnd LaunchRecord::end(int launcher_code) const {
  using enum LaunchEnd::Kind;
  const auto text = text_of(train::state_file(folder_));
  const auto state = train::parse_run_state(text);
  if (text == state_ || !state) return {.kind = not_started, .code = launcher_code};
  if (state->phase == RunPhase::running)
    return {.kind = failed,
            .code = launcher_code == 0 ? static_cast<int>(ExitCode::stopped_early) : launcher_code,
            .step = last_step(folder_, *state),
            .reason = "the ranks were killed"};
  const int code = static_cast<int>(state->exit_code);
  const auto failure = parse_failure(text_of(train::failure_file(folder_)));
  const bool is_its_own = !failure.is_null() && failure["detail"] == state->reason;
  if (!is_its_own && state->faulty_hosts.empty()) return {.kind = asked, .code = code};
  LaunchEnd end{.kind = failed, .code = code, .hosts = state->faulty_hosts};
  end.reason = state->reason;
  end.step = is_its_own && failure["step"].is_number_integer() ? failure["step"].get<std::int64_t>()
                                                               : last_step(folder_, *state);
  if (end.hosts.empty() && state->exit_code == ExitCode::stopped_early &&
      names_faulty_rank(failure))
    end.hosts = host_of(failure);
  return end;
}

std::optional<LaunchEnd> LaunchRecord::earlier_failure() const {
  const auto text = text_of(train::failure_file(folder_));
  if (text == failure_) return {};
  const auto failure = parse_failure(text);
  if (failure.is_null() || (failure["kind"] != "killed" && failure["kind"] != "vanished"))
    return {};
  LaunchEnd end{.kind = LaunchEnd::Kind::failed, .hosts = host_of(failure)};
  if (failure["detail"].is_string()) end.reason = failure["detail"].get<std::string>();
  return end;
}

}  // namespace llamesh::app
