#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/calls/flight_record.hpp"
#include "comm/diagnosis/questions.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// Returns the ranks that `own` must ask. The first of these ranks on each host is its leader: it
/// asks all of them on its own host, and the other hosts' leaders. The others ask their host's
/// leader. So a rank asks as many as there are hosts and ranks on its own host, not all. `hosts` is
/// by rank. Pure.
std::vector<int> ranks_to_ask(std::span<const int> members, const std::vector<std::string>& hosts,
                              int own);

/// Returns the ranks that know whether `rank` is alive: the next one, which receives its
/// heartbeats, and the first one beyond its host, which receives those from the host's last rank.
/// `hosts` is by rank. Pure.
std::array<int, 2> witnesses_of(int rank, const std::vector<std::string>& hosts);

/// Returns true if only `own` can report that it and `other` cannot reach each other: the
/// heartbeats from its host go to the other's host, which therefore hears nothing and cannot tell a
/// cut link from a dead host. Pure.
bool alone_can_report(int own, int other, const std::vector<std::string>& hosts);

/// Hang diagnosis for a rank that is stuck in a collective: it asks other members where they are
/// (ranks_to_ask()), and each watchdog answers at once. A member that does not answer, although
/// others receive its heartbeats, is alive behind a broken link. A member that has not entered the
/// collective is late. One that is in another collective with the same number is out of order; so
/// is this rank if most are in that other one. Nothing is sent unless a rank has been in one
/// collective for long; then the questions are repeated.
///
/// Only one thread at a time may use it, the one that uses `group`.
class HangDiagnosis {
 public:
  using Clock = std::chrono::steady_clock;

  /// A rank's answer about itself.
  struct RankStatus {
    Activity activity = Activity::starting;
    std::int64_t step = 0;
    double stalled = 0;  ///< seconds without progress
    double limit = 0;    ///< maximum for `stalled`
    double silence = 0;  ///< seconds since the previous rank's last heartbeat
  };

  /// Borrows `group` and `hosts`, which is by rank in it.
  HangDiagnosis(const Communicator& group, const std::vector<std::string>& hosts,
                const Watchdog::Limits& limits);

  /// Answers, receives answers, and asks. Must be called at each interval.
  void poll(const RankStatus& mine);
  /// Starts asking again: questions from before this process was suspended do not count.
  void reset() { inquiries_.clear(); }
  /// Returns the rank at fault, once that is certain. If several ranks can report it, all but the
  /// first wait for the first to do so.
  std::optional<Diagnosis> diagnose();
  /// Returns true if a member in this rank's collective is late but answers, here or to the first
  /// rank on a host: its own limit then applies.
  bool waits_for_another() const;
  /// Answers until all ranks are here. A rank that `has_reported` waits for no answer. Collective.
  void shut_down(bool has_reported);

 private:
  static constexpr std::size_t text_bytes = 200;
  struct Question {
    std::int64_t number = 0;
    std::uint64_t members = 0;
    std::int64_t collective = 0;
    std::uint64_t what = 0;  ///< hash of the collective's name
  };
  struct Answer {
    std::int64_t number = 0;
    std::int64_t has_come = 0;       ///< whether it has entered the collective
    std::int64_t differs = 0;        ///< in another one with the same number
    std::int64_t awaits_late = 0;    ///< a host leader that knows of a late member
    std::int64_t in_collective = 0;  ///< this one or another: it may itself wait for a rank
    double stalled = 0;
    double limit = 0;
    double silence = 0;
    std::int64_t activity = 0;
    std::int64_t step = 0;
    std::array<char, text_bytes> doing{};
  };
  /// A rank that was asked, and its newest answer.
  struct Asked {
    std::int64_t number = 0;
    Clock::time_point at;
    bool waiting = false;
    std::optional<Answer> answer;
  };
  struct Inquiry {
    RecordedCollective collective;
    std::vector<int> to_ask;
    bool is_leader = false;  ///< this rank is its host's leader
    std::map<int, Asked> asked = {};
    std::optional<Clock::time_point> found = {};  ///< when the rank at fault was found
  };

  Answer answer(int source, const Question& question) const;
  void take(int source, const Answer& answer);
  void inquire();
  void call(Inquiry& inquiry);
  void ask(const Inquiry& inquiry, Asked& asked, int rank);
  bool cut_off(const Inquiry& inquiry, int rank) const;
  bool late(const Inquiry& inquiry, int rank) const;
  bool awaits_late(const Inquiry& inquiry, int rank) const;
  bool knows_of_late(const Question& question, int source) const;
  bool differs(const Inquiry& inquiry, int rank) const;
  enum class Standing : std::uint8_t { with_most, undecided, with_few };
  Standing standing(const Inquiry& inquiry) const;
  bool to_blame(const Inquiry& inquiry, int rank) const;
  Clock::duration turn(const Inquiry& inquiry, int faulty_rank, bool link) const;
  const std::string& host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  bool on_my_host(int rank) const { return host_of(rank) == host_of(group_.rank()); }
  std::string name_of(int rank) const;
  Diagnosis link_is_cut(const Inquiry& inquiry, int other) const;
  Diagnosis is_in_another(const Inquiry& inquiry, int other) const;
  Diagnosis has_not_come(const Inquiry& inquiry, int other) const;

  const Communicator& group_;
  const std::vector<std::string>& hosts_;
  Watchdog::Limits limits_;
  RankStatus mine_;
  Clock::time_point now_ = Clock::now();
  std::vector<Inquiry> inquiries_;
  Questions<Question, Answer> questions_;
};

}  // namespace llamesh::comm
