#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace llamesh::comm {

/// What a rank can be busy with, for the line that reports a hang.
enum class Activity : std::int64_t {
  starting,
  building,
  resuming,
  training,
  evaluating,
  saving,
  ending
};

/// How long an activity may go without progress before it counts as a hang: five times the median
/// of how long it took before, at least 60 s; `of_the_first` when there was none before. Seconds.
double longest_reasonable(std::vector<double> durations, double of_the_first);

/// What a watchdog has found: one line that names ranks, their hosts and what they were doing, and
/// the same in parts. Empty: another rank reports.
struct Verdict {
  std::string line;
  std::vector<int> ranks;  ///< to blame: one, or the two that cannot reach each other
  std::vector<std::string> hosts;
  std::string doing;  ///< "training step 14, in the all-gather of layers.3 along shard"
};

/// Finds a rank that does not go on: stopped, on a node that froze or fell off the network, or
/// waiting for what never comes. A thread of each rank sends a heartbeat to the next rank every
/// second (16 bytes, whatever the number of ranks) and receives those of the previous one; and it
/// checks how long its own rank has been at what it is doing. When it does not get out of a
/// collective the other ranks are asked where they are (comm/roll_call.hpp). An alarm is passed on
/// from rank to rank, for ranks that the launcher cannot reach any more; the first one is the last.
class Watchdog {
 public:
  /// Called on the watchdog's own thread. It is expected to end the job.
  using Alarm = std::function<void(const Verdict& verdict)>;

  struct Limits {
    std::chrono::milliseconds interval{1000};  ///< between two heartbeats
    std::chrono::milliseconds silence{30000};  ///< of the previous rank, until it counts as lost
    /// The same once `job_ends` says that the job is being ended from outside: then a rank is
    /// likely to be dead already, and the others wait for it in vain.
    std::chrono::milliseconds silence_at_the_end{4000};
    std::function<bool()> job_ends = [] { return false; };
    std::chrono::milliseconds in_a_collective{15000};  ///< until the others are asked
    std::chrono::milliseconds answer{10000};           ///< of a rank that was asked
  };

  /// Collective. `world` is borrowed until it returns. `job_ends` is asked on another thread.
  Watchdog(const Communicator& world, Alarm alarm, Limits limits);
  /// Collective, unless an exception unwinds.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on this rank is at `activity` of step `step`; it begins with `starting`, which has
  /// an hour. `of_the_first`: how long the first one of its kind may go without progress.
  void begin(Activity activity, std::int64_t step,
             std::chrono::seconds of_the_first = std::chrono::minutes(10));
  /// Part of the activity is done, such as a micro-batch of a step.
  void progress();
  /// From now on this is called instead.
  void set_alarm(Alarm alarm);

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace llamesh::comm
