#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// A rank's current activity, for the line that reports a hang.
enum class Activity : std::int64_t {
  starting,
  building,
  resuming,
  training,
  evaluating,
  saving,
  copying,  ///< into memory checkpoints
  ending
};

/// Formats an activity: "training step 14".
std::string describe(Activity activity, std::int64_t step);

/// Returns the seconds without progress after which an activity counts as hung: five times the
/// median of its earlier durations, at least 60 s and `at_least`; `of_the_first` if there are none.
double longest_reasonable(std::vector<double> durations, double of_the_first, double at_least = 0);

/// Result from a watchdog: one line that names ranks, their hosts and activities, and the same as
/// fields. Empty: another rank reports.
struct Diagnosis {
  std::string line;
  std::vector<int> ranks;  ///< at fault: one, or two that cannot reach each other
  std::vector<std::string> hosts;
  std::string doing;  ///< "training step 14, in the all-gather of layers.3 along shard"
  // As fields, for failure.json:
  std::string kind = {};                   ///< lost, link, late, stuck or order
  Activity activity = Activity::starting;  ///< of the first rank at fault, when last heard
  std::int64_t step = 0;
  std::string axis = {};          ///< axis of the collective in which ranks wait; empty: none
  std::string collective = {};    ///< "all-gather"
  std::string unit = {};          ///< "layers.3"
  std::vector<int> waiting = {};  ///< its members, except those at fault
  /// True if this rank reaches only a minority of the hosts: it reports its view, and the others
  /// give the diagnosis.
  bool of_minority = false;
};

struct RecordedCollective;

/// Sets the collective and the members that wait in it, except the ranks at fault.
void set_waiting(Diagnosis& diagnosis, const RecordedCollective& collective);

/// Detector for a rank without progress: stopped, on a node that froze or lost the network, or
/// waiting for something that never happens. A thread on each rank sends a heartbeat to the next
/// rank every second (16 bytes for any number of ranks) and receives those from the previous one.
/// It also checks how long its own rank has been in its current activity. If that is stuck in a
/// collective, it asks the other ranks where they are (comm/diagnosis/hang_diagnosis.hpp). If the
/// previous rank is silent, it asks other hosts who is cut off (comm/diagnosis/host_survey.hpp); a
/// rank that reaches fewer hosts than others lets them give the diagnosis first. An alarm is passed
/// on from rank to rank, for ranks that the launcher can no longer reach; only the first alarm
/// counts.
class Watchdog {
 public:
  /// Callback that runs on the watchdog's thread and should end the job.
  using Alarm = std::function<void(const Diagnosis& diagnosis)>;

  struct Limits {
    std::chrono::milliseconds interval{1000};  ///< between heartbeats
    std::chrono::milliseconds silence{30000};  ///< from the previous rank, until it counts as lost
    /// Silence limit once `job_ends` says that the job is being ended from outside: then a rank is
    /// likely to be dead already.
    std::chrono::milliseconds silence_at_the_end{4000};
    std::function<bool()> job_ends = [] { return false; };
    std::chrono::milliseconds in_a_collective{12000};  ///< until the others are asked
    std::chrono::milliseconds answer{10000};           ///< time for a rank to answer

    /// Returns the limits above in proportion to this silence limit, so that a shorter one leaves
    /// the same number of heartbeats and questions. A longer one does not make heartbeats rarer.
    static Limits for_silence(std::chrono::milliseconds silence);
  };

  /// Collective. Borrows `world` until it returns. Calls `job_ends` on another thread.
  Watchdog(const Communicator& world, Alarm alarm, Limits limits);
  /// Collective, unless an exception unwinds.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Sets this rank's activity and its step; the initial activity is `starting`, with a limit of an
  /// hour. `of_the_first`: limit without progress for the first activity of its kind. `at_least`:
  /// minimum of the later ones' limits, if they wait for work in the background, whose time the
  /// earlier durations do not show.
  void begin(Activity activity, std::int64_t step,
             std::chrono::seconds of_the_first = std::chrono::minutes(10),
             std::chrono::seconds at_least = {});
  /// Records progress within the activity, such as a micro-batch in a step.
  void progress();
  /// Waits as long as the watchdogs take to find a lost rank; the alarm then ends the process. Call
  /// it after an MpiFailure. Returns if nobody is found to be at fault.
  void await_diagnosis() const;
  /// Replaces the callback.
  void set_alarm(Alarm alarm);

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace llamesh::comm
