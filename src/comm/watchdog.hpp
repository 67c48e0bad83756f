#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace llamesh::comm {

/// What a rank is doing, for the line that reports a hang.
enum class Activity : std::int64_t {
  starting,
  building,
  resuming,
  training,
  evaluating,
  saving,
  ending
};

/// "training step 14"
std::string describe(Activity activity, std::int64_t step);

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
  // In parts, for failure.json:
  std::string kind = {};                   ///< lost, link, late, stuck or order
  Activity activity = Activity::starting;  ///< of the first rank to blame, when last heard of
  std::int64_t step = 0;
  std::string axis = {};          ///< of the collective in which ranks wait; empty: in none
  std::string collective = {};    ///< "all-gather"
  std::string unit = {};          ///< "layers.3"
  std::vector<int> waiting = {};  ///< its members, but for those to blame
  /// This rank reaches a minority of the hosts: it says what it saw, and the others give the
  /// verdict.
  bool of_minority = false;
};

struct OpenCollective;

/// Sets in what the members wait, but for the ranks to blame.
void set_waiting(Verdict& verdict, const OpenCollective& collective);

/// Finds a rank that makes no progress: stopped, on a node that froze or lost the network, or
/// waiting for something that never happens. A thread of each rank sends a heartbeat to the next
/// rank every second (16 bytes for any number of ranks) and receives those of the previous one; it
/// also checks how long its own rank has been in its current activity. When that is stuck in a
/// collective, the other ranks are asked where they are (comm/roll_call.hpp). If the previous rank
/// is silent, other hosts are asked who is cut off (comm/host_survey.hpp): a rank that reaches
/// fewer hosts than the others do lets them give the verdict first. An alarm is passed on from rank
/// to rank, for ranks that the launcher cannot reach any more; only the first alarm counts.
class Watchdog {
 public:
  /// Called on the watchdog's thread. It is expected to end the job.
  using Alarm = std::function<void(const Verdict& verdict)>;

  struct Limits {
    std::chrono::milliseconds interval{1000};  ///< between two heartbeats
    std::chrono::milliseconds silence{30000};  ///< of the previous rank, until it counts as lost
    /// The same once `job_ends` says that the job is being ended from outside: then a rank is
    /// likely to be dead already.
    std::chrono::milliseconds silence_at_the_end{4000};
    std::function<bool()> job_ends = [] { return false; };
    std::chrono::milliseconds in_a_collective{12000};  ///< until the others are asked
    std::chrono::milliseconds answer{10000};           ///< of a rank that was asked
  };

  /// Collective. `world` is borrowed until it returns. `job_ends` is asked on another thread.
  Watchdog(const Communicator& world, Alarm alarm, Limits limits);
  /// Collective, unless an exception unwinds.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Sets what this rank is doing, `activity` of step `step`; the initial one is `starting`, with a
  /// limit of an hour. `of_the_first`: the limit without progress of the first activity of its
  /// kind.
  void begin(Activity activity, std::int64_t step,
             std::chrono::seconds of_the_first = std::chrono::minutes(10));
  /// Records progress within the activity, such as a micro-batch of a step.
  void progress();
  /// Replaces the callback.
  void set_alarm(Alarm alarm);

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace llamesh::comm
