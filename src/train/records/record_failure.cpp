#include <fmt/format.h>

#include <chrono>
#include <exception>

#include "train/records/failure.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::train {
namespace {

/// Returns true if the state was just written: ranks that cannot reach each other may all report,
/// and the first diagnosis is the most accurate.
bool just_written(const std::filesystem::path& run_folder) {
  const auto written = std::filesystem::last_write_time(state_file(run_folder));
  return std::filesystem::file_time_type::clock::now() - written < std::chrono::seconds(30);
}

/// Returns true if the run was done and this launch has not changed that yet.
bool is_done(const std::filesystem::path& run_folder) {
  const auto state = read_run_state(run_folder);
  return state && state->phase == RunPhase::done;
}

}  // namespace

void note_end(ExitCode code, const Failure& failure) noexcept {
  comm::FlightRecorder::instance().end(static_cast<int>(code),
                                       {failure.kind, failure.rank, failure.host, failure.detail});
}

void record_failure(const std::filesystem::path& run_folder, ExitCode code,
                    const std::string& reason) noexcept {
  try {
    const auto failure = failure_of_error(reason);
    note_end(code, failure);
    if (code == ExitCode::bad_input && is_done(run_folder)) return;
    comm::Diagnosis diagnosis{.line = reason, .ranks = {}, .hosts = {}, .doing = ""};
    if (code == ExitCode::stopped_early && is_fault_of_reporter(reason)) {
      diagnosis.ranks = {failure.rank};
      diagnosis.hosts = {failure.host};
      diagnosis.doing = fmt::format("{} step {}", failure.phase, failure.step);
    }
    if (record_failure(run_folder, code, diagnosis)) write_failure(run_folder, failure);
  } catch (const std::exception&) {
    return;
  }
}

bool record_failure(const std::filesystem::path& run_folder, ExitCode code,
                    const comm::Diagnosis& diagnosis) noexcept {
  try {
    auto state = read_run_state(run_folder).value_or(RunState{});
    if (!diagnosis.ranks.empty() && !state.faulty_ranks.empty() && just_written(run_folder))
      return false;
    state.phase = code == ExitCode::stopped_early ? RunPhase::stopped : RunPhase::failed;
    state.exit_code = code;
    state.reason = diagnosis.line;
    state.doing = diagnosis.doing;
    state.faulty_ranks = diagnosis.ranks;
    state.faulty_hosts = diagnosis.hosts;
    write_run_state(run_folder, state);
    if (!diagnosis.kind.empty()) write_failure(run_folder, failure_of(diagnosis));
  } catch (const std::exception&) {
    return true;
  }
  return true;
}

}  // namespace llamesh::train
