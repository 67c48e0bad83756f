#include "train/job/deadline.hpp"

#include <csignal>

#include "core/process.hpp"

namespace llamesh::train {
namespace {

constexpr double slurm_may_be_early = 60;
constexpr std::chrono::seconds time_for_answer{10};
constexpr std::chrono::seconds between_looks{1};  // no more often, to spare shared file systems

Stop asked_by_signal() {
  switch (received_stop_signal()) {
    case SIGTERM:
      return Stop::terminate;
    case SIGUSR1:
      return Stop::user_signal_1;
    case SIGUSR2:
      return Stop::user_signal_2;
    case SIGXCPU:
      return Stop::cpu_limit;
    case SIGINT:
      return Stop::interrupt;
    case SIGHUP:
      return Stop::hangup;
    case SIGPIPE:
      return Stop::broken_pipe;
    default:
      return Stop::no;
  }
}

}  // namespace

std::string describe(Stop reason, const std::filesystem::path& run_folder) {
  switch (reason) {
    case Stop::no:
      return "nothing";
    case Stop::halt_file:
      return "the file " + Deadline::halt_file(run_folder).string();
    case Stop::walltime:
      return "the end of the walltime";
    case Stop::broken_pipe:
      return "SIGPIPE (nothing reads the output any more)";
    case Stop::hangup:
      return "SIGHUP";
    case Stop::interrupt:
      return "SIGINT";
    case Stop::cpu_limit:
      return "SIGXCPU (the limit of CPU time)";
    case Stop::user_signal_1:
      return "SIGUSR1";
    case Stop::user_signal_2:
      return "SIGUSR2";
    case Stop::terminate:
      return "SIGTERM";
  }
  return "nothing";
}

double lead_time(double save_seconds, double step_seconds) {
  return 2 * save_seconds + step_seconds + slurm_may_be_early;
}

std::filesystem::path Deadline::halt_file(const std::filesystem::path& run_folder) {
  return run_folder / "halt";
}

bool Deadline::halt_file_is_there(const std::filesystem::path& run_folder) {
  std::error_code ignored;  // a folder that cannot be read has no halt file
  return std::filesystem::exists(std::filesystem::symlink_status(halt_file(run_folder), ignored));
}

Deadline::Deadline(std::filesystem::path run_folder, bool watches)
    : run_folder_(std::move(run_folder)), watches_(watches) {
  if (watches_) walltime_.emplace();
}

bool Deadline::termination_asked() {
  return received_stop_signal() == SIGTERM;
}

Stop Deadline::asked(double save_seconds, double step_seconds) {
  if (const auto signalled = asked_by_signal(); signalled != Stop::no) return signalled;
  if (is_nearly_over(lead_time(save_seconds, step_seconds))) return Stop::walltime;
  return sees_halt_file() ? Stop::halt_file : Stop::no;
}

std::optional<double> Deadline::seconds_left(std::chrono::milliseconds timeout) {
  if (!walltime_) return {};
  const auto left = walltime_->left(timeout);
  if (!left) return {};
  return left->count();
}

/// Asks Slurm again before the run stops: the limit may have been raised since it last answered.
bool Deadline::is_nearly_over(double lead) {
  const auto is_near = [&] {
    const auto left = seconds_left();
    return left && *left < lead;
  };
  if (!is_near()) return false;
  walltime_->ask_again(time_for_answer);
  return is_near();
}

bool Deadline::sees_halt_file() {
  const auto now = Walltime::Clock::now();
  if (!watches_ || now - looked_ < between_looks) return false;
  looked_ = now;
  return halt_file_is_there(run_folder_);
}

}  // namespace llamesh::train
