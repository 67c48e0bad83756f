#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/diagnosis/hang_diagnosis.hpp"
#include "comm/diagnosis/questions.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// Part of a run's hosts that a rank reaches, its own host included.
enum class Part : std::uint8_t {
  majority,  ///< more than half of the hosts, or exactly half including rank 0's
  half,      ///< exactly half of the hosts, without rank 0's
  minority
};

/// Returns the part for these counts. Pure.
Part part_of(int reached, int hosts, bool with_rank_0);

/// Survey that finds out who is cut off if a rank is silent: this host, the silent rank's host, or
/// the link between the two. It asks the first rank on every other host whether it answers, and
/// whether the silent rank's host answers it. Sends nothing while no rank is silent.
///
/// One thread at a time, the one that uses `group`.
class HostSurvey {
 public:
  using Clock = std::chrono::steady_clock;

  struct Findings {
    int hosts = 1;
    int reached = 1;                 ///< hosts that answer, this one included
    Part part = Part::majority;      ///< this rank's part
    bool suspect_is_silent = false;  ///< the suspect's host has had time to answer, and has not
    int reach_suspect = 0;           ///< hosts that answer, and that the suspect's host answers
  };

  /// The previous rank, whose heartbeats may be missing.
  struct SilentRank {
    int rank = 0;
    Clock::duration silent;                  ///< since its last heartbeat
    Clock::duration limit;                   ///< silence after which it counts as lost
    Activity activity = Activity::starting;  ///< at the last heartbeat
    std::int64_t step = 0;
  };

  /// Borrows `group` and `hosts`, which is by rank in it.
  HostSurvey(const Communicator& group, const std::vector<std::string>& hosts,
             const Watchdog::Limits& limits);

  /// Answers and, while there is a `suspect`, asks. Must be called at each interval. The suspect is
  /// the previous rank if its heartbeats are missing.
  void poll(std::optional<int> suspect);
  /// Forgets findings from before this process was suspended.
  void reset() { probes_.clear(); }
  Findings findings(int suspect) const;
  /// Returns who is cut off, once `suspect` exceeds its limit. A rank outside the majority waits
  /// some seconds longer: the others report first, and their alarm may still reach it.
  std::optional<Diagnosis> diagnose(const SilentRank& suspect,
                                    const HangDiagnosis::RankStatus& mine) const;
  /// Returns who is cut off, given these findings.
  std::optional<Diagnosis> diagnose(const SilentRank& suspect,
                                    const HangDiagnosis::RankStatus& mine,
                                    const Findings& found) const;
  /// Answers until all ranks are here. Collective.
  void shut_down(bool has_reported);

 private:
  static constexpr std::int64_t nobody = -1;
  struct Question {
    std::int64_t number = 0;
    std::int64_t suspect = nobody;  ///< the first rank on its host
  };
  struct Answer {
    std::int64_t number = 0;
    std::int64_t reaches_suspect = 0;
  };
  /// The newest question to a host.
  struct Probe {
    std::int64_t number = 0;  ///< 0: not asked yet
    Clock::time_point asked;
    bool waiting = false;
    std::optional<Clock::time_point> heard = {};  ///< when the newest answered question was asked
    bool reaches_suspect = false;
  };

  void serve();
  Answer answer(const Question& question);
  void take(int source, const Answer& answer);
  void probe(int leader, std::int64_t suspect);
  bool reaches(int leader) const;
  int leader_of(int rank) const;
  const std::string& host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  std::string name_of(int rank) const;
  Diagnosis isolated(const Findings& found, const SilentRank& suspect) const;
  Diagnosis link_is_cut(const Findings& found, const SilentRank& suspect,
                        const HangDiagnosis::RankStatus& mine) const;
  Diagnosis lost(const Findings& found, const SilentRank& suspect) const;

  const Communicator& group_;
  const std::vector<std::string>& hosts_;
  Watchdog::Limits limits_;
  std::vector<int> leader_of_;  ///< by rank: the first rank on its host
  std::vector<int> leaders_;    ///< one per host
  Clock::time_point now_ = Clock::now();
  std::map<int, Probe> probes_;  ///< by leader
  Questions<Question, Answer> questions_;
};

}  // namespace llamesh::comm
