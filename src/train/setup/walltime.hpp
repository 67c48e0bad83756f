#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace llamesh::train {

/// Parses a job's time left as squeue prints it (%L): "1-02:03:04", "02:03:04" or "03:04". Returns
/// nothing for UNLIMITED, NOT_SET, INVALID, more than 285 years and anything else. Pure.
std::optional<std::chrono::seconds> parse_time_left(std::string_view text);

/// Parses the time at which a job ends, in seconds since 1970, also with a fraction (as from
/// `date +%s.%N`). Returns nothing for anything else, and for times after the year 2255, which are
/// in another unit. Pure.
std::optional<std::chrono::duration<double>> parse_end_time(std::string_view text);

/// Throws a user error if LLAMESH_JOB_END_TIME is before this program's start: another job has left
/// it behind, and the run would stop before its first step at every launch.
void refuse_stale_end_time();

/// The job's remaining walltime. A thread queries Slurm at the start, every five minutes and when
/// asked to, since a limit can change while the job runs and the controller may be slow or
/// unreachable. Between answers the clock counts down. Outside a Slurm job the limit is
/// LLAMESH_JOB_END_TIME (seconds since 1970), which the job scripts of other resource managers set;
/// without it there is none. A value that cannot be read, and one before this program's start, is
/// warned of and ignored.
class Walltime {
 public:
  using Clock = std::chrono::steady_clock;
  /// Callback that returns the time left in squeue's format. Empty if there is no answer.
  using Ask = std::function<std::string()>;

  /// Queries Slurm about this job, if it is one, and takes an end time from the environment.
  Walltime();
  explicit Walltime(Ask ask, std::chrono::milliseconds interval = std::chrono::minutes(5));

  /// Returns the time left, if known. Waits up to `timeout` for the first answer.
  std::optional<std::chrono::duration<double>> left(
      std::chrono::milliseconds timeout = std::chrono::milliseconds(0));
  /// Queries Slurm now, and waits up to `timeout` for its answer.
  void ask_again(std::chrono::milliseconds timeout);

 private:
  void keep_asking(const std::stop_token& stop, const Ask& ask, std::chrono::milliseconds interval);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool asked_ = false;  ///< since the start, or since ask_again()
  bool ask_now_ = false;
  std::optional<Clock::time_point> end_;
  std::jthread thread_;
};

}  // namespace llamesh::train
