#include "train/deadline.hpp"

#include <atomic>
#include <csignal>

#include "core/error.hpp"

namespace llamesh::train {
namespace {

constexpr double slurm_may_be_early = 60;
constexpr std::chrono::seconds between_looks{1};  // a shared file system is asked no more often

// Written by the handler, read by any thread.
std::atomic<int> user_signal = 0;
std::atomic<int> terminate = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  (signal == SIGTERM ? terminate : user_signal) = 1;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  expects(sigaction(signal, &action, nullptr) == 0, "signal {} cannot be handled", signal);
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
    case Stop::user_signal:
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

Deadline::Deadline(std::filesystem::path run_folder, bool watches)
    : run_folder_(std::move(run_folder)), watches_(watches) {
  user_signal = 0;
  terminate = 0;
  handle(SIGUSR2, note);
  handle(SIGTERM, note);
  if (watches_) walltime_.emplace();
}

Deadline::~Deadline() {
  handle(SIGUSR2, SIG_DFL);
  handle(SIGTERM, SIG_DFL);
}

bool Deadline::termination_asked() {
  return terminate != 0;
}

Stop Deadline::asked(double save_seconds, double step_seconds) {
  if (terminate != 0) return Stop::terminate;
  if (user_signal != 0) return Stop::user_signal;
  const auto left = seconds_left();
  if (left && *left < lead_time(save_seconds, step_seconds)) return Stop::walltime;
  return halt_file_is_there() ? Stop::halt_file : Stop::no;
}

std::optional<double> Deadline::seconds_left(std::chrono::milliseconds patience) {
  if (!walltime_) return {};
  const auto left = walltime_->left(patience);
  if (!left) return {};
  return left->count();
}

bool Deadline::halt_file_is_there() {
  const auto now = Walltime::Clock::now();
  if (!watches_ || now - looked_ < between_looks) return false;
  looked_ = now;
  std::error_code ignored;  // a folder that cannot be read now says nothing
  return std::filesystem::exists(halt_file(run_folder_), ignored);
}

}  // namespace llamesh::train
