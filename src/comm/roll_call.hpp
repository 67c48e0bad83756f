#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/in_collective.hpp"
#include "comm/mpi.hpp"
#include "comm/watchdog.hpp"

namespace llamesh::comm {

/// Finds out what a rank waits for that does not get out of a collective: it asks each of the
/// other members where it is, and each watchdog answers at once. A member that gives no answer,
/// although ranks that its signs of life go to hear it, is alive behind a cut link. One that has
/// not come to the collective is late. Nothing is sent unless a rank has been in one collective for
/// long; then a question and an answer for each member, and again for those that are late.
///
/// Only one thread at a time may use it, the one that uses `group`.
class RollCall {
 public:
  using Clock = std::chrono::steady_clock;

  /// What a rank tells of itself.
  struct Place {
    std::string doing;   ///< "training step 14"
    double stalled = 0;  ///< seconds without progress
    double limit = 0;    ///< and how many there may be
    double silence = 0;  ///< seconds since the rank before gave a sign of life
  };

  /// `group` and `hosts`, by rank of it, are borrowed.
  RollCall(const Communicator& group, const std::vector<std::string>& hosts,
           const Watchdog::Limits& limits);

  /// To be called at each interval: answers, listens, asks.
  void round(const Place& mine);
  /// Asks again from the beginning: what was asked before this process stood still does not count.
  void start_anew() { rolls_.clear(); }
  /// Who is to blame, once that is certain. Where several ranks can tell, all but the first give it
  /// time to do so.
  std::optional<Verdict> verdict();
  /// Whether a member of a collective that this rank is in is late, and answers: it is to be judged
  /// by its own limit.
  bool waits_for_another() const;
  /// Collective: answers until all ranks are here. Who `gave_verdict` waits for no answer.
  void take_leave(bool gave_verdict);

 private:
  static constexpr std::size_t text_bytes = 200;
  struct Question {
    std::int64_t number;
    std::uint64_t members;
    std::int64_t collective;
  };
  struct Answer {
    std::int64_t number = 0;
    std::int64_t has_come = 0;       ///< to the collective
    std::int64_t in_collective = 0;  ///< this one or another: then it may itself wait for a rank
    double stalled = 0;
    double limit = 0;
    double silence = 0;
    std::array<char, text_bytes> doing{};
  };
  /// A rank that was asked, and its newest answer.
  struct Asked {
    std::int64_t number = 0;
    Clock::time_point at;
    bool waiting = false;
    std::optional<Answer> answer;
  };
  struct Roll {
    OpenCollective collective;
    std::map<int, Asked> asked;
    std::optional<Clock::time_point> found;  ///< who is to blame
  };
  struct Sending {
    Question question;
    Answer answer;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void answer_questions();
  void hear_answers();
  void forget_what_was_sent();
  void call_rolls();
  void call(Roll& roll);
  void ask(const Roll& roll, Asked& asked, int rank);
  std::array<int, 2> witnesses_of(int rank) const;
  bool cut_off(const Roll& roll, int rank) const;
  bool late(const Roll& roll, int rank) const;
  bool to_blame(const Roll& roll, int rank) const;
  Clock::duration turn(const Roll& roll, int culprit, bool link) const;
  const std::string& host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  std::string name_of(int rank) const;
  Verdict link_is_cut(const Roll& roll, int other) const;
  Verdict has_not_come(const Roll& roll, int other) const;

  const Communicator& group_;
  const std::vector<std::string>& hosts_;
  Watchdog::Limits limits_;
  Place mine_;
  Clock::time_point now_ = Clock::now();
  std::vector<Roll> rolls_;
  std::int64_t numbers_ = 0;
  std::set<std::int64_t> unanswered_;  ///< numbers of questions
  std::list<Sending> sending_;
};

}  // namespace llamesh::comm
