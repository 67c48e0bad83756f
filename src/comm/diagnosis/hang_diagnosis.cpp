#include "comm/diagnosis/hang_diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/clock.hpp"
#include "core/philox.hpp"

namespace llamesh::comm {
namespace {

constexpr int diagnosis_tag = 1;  // 0: heartbeats

/// Returns the first of these ranks on the host of `rank`.
int first_on_host_of(int rank, std::span<const int> members,
                     const std::vector<std::string>& hosts) {
  const auto& host = hosts[static_cast<std::size_t>(rank)];
  return *std::ranges::find(members, host, [&](int r) -> const std::string& {
    return hosts[static_cast<std::size_t>(r)];
  });
}

}  // namespace

std::vector<int> ranks_to_ask(std::span<const int> members, const std::vector<std::string>& hosts,
                              int own) {
  const int first = first_on_host_of(own, members, hosts);
  if (first != own) return {first};
  const auto host_of = [&](int rank) -> const std::string& {
    return hosts[static_cast<std::size_t>(rank)];
  };
  std::set<std::string> known;
  std::vector<int> ranks;
  for (const int rank : members)
    if (rank != own && (host_of(rank) == host_of(own) || known.insert(host_of(rank)).second))
      ranks.push_back(rank);
  return ranks;
}

std::array<int, 2> witnesses_of(int rank, const std::vector<std::string>& hosts) {
  const auto size = static_cast<int>(hosts.size());
  const auto host_of = [&](int r) -> const std::string& {
    return hosts[static_cast<std::size_t>(r)];
  };
  const int next = (rank + 1) % size;
  int beyond = next;
  while (beyond != rank && host_of(beyond) == host_of(rank)) beyond = (beyond + 1) % size;
  return {next, beyond};
}

bool alone_can_report(int own, int other, const std::vector<std::string>& hosts) {
  const int beyond = witnesses_of(own, hosts)[1];
  return hosts[static_cast<std::size_t>(beyond)] == hosts[static_cast<std::size_t>(other)];
}

HangDiagnosis::HangDiagnosis(const Communicator& group, const std::vector<std::string>& hosts,
                             const Watchdog::Limits& limits)
    : group_(group), hosts_(hosts), limits_(limits), questions_(group, diagnosis_tag) {}

void HangDiagnosis::poll(const RankStatus& mine) {
  now_ = Clock::now();
  mine_ = mine;
  questions_.serve(
      [this](int source, const Question& question) { return answer(source, question); },
      [this](int source, const Answer& answer) { take(source, answer); });
  inquire();
}

HangDiagnosis::Answer HangDiagnosis::answer(int source, const Question& question) const {
  const auto& recorder = FlightRecorder::instance();
  const auto open = recorder.in_progress();
  const auto same = std::ranges::find_if(open, [&](const RecordedCollective& one) {
    return one.call.group == question.members && one.call.number == question.collective;
  });
  const bool differs = same != open.end() && name_hash(title(same->call)) != question.what;
  Answer answer{.has_come = recorder.entered(question.members) >= question.collective,
                .differs = differs,
                .awaits_late = knows_of_late(question, source),
                .in_collective = !open.empty(),
                .stalled = mine_.stalled,
                .limit = mine_.limit,
                .silence = mine_.silence,
                .activity = static_cast<std::int64_t>(mine_.activity),
                .step = mine_.step};
  const auto doing =
      describe(mine_.activity, mine_.step) +
      (open.empty() ? "" : ", in the " + title((differs ? *same : open.front()).call));
  doing.copy(answer.doing.data(), text_bytes - 1);
  return answer;
}

void HangDiagnosis::take(int source, const Answer& answer) {
  for (Inquiry& inquiry : inquiries_) {
    const auto found = inquiry.asked.find(source);
    if (found == inquiry.asked.end() || found->second.number != answer.number) continue;
    found->second.waiting = false;
    found->second.answer = answer;
  }
}

/// Keeps one inquiry for each collective in which this rank is stuck.
void HangDiagnosis::inquire() {
  std::vector<Inquiry> inquiries;
  for (auto& open : FlightRecorder::instance().in_progress()) {
    if (open.members->ranks.size() == 1 || now_ - open.since < limits_.in_a_collective) continue;
    const auto known = std::ranges::find_if(inquiries_, [&](const Inquiry& inquiry) {
      return inquiry.collective.call.group == open.call.group &&
             inquiry.collective.call.number == open.call.number;
    });
    if (known != inquiries_.end()) {
      inquiries.push_back(std::move(*known));
      inquiries_.erase(known);
    } else {
      const auto& members = open.members->ranks;
      const bool is_leader = first_on_host_of(group_.rank(), members, hosts_) == group_.rank();
      auto to_ask = ranks_to_ask(members, hosts_, group_.rank());
      // In a send_recv, its host's leader may not be waiting.
      for (const int peer : {open.call.from, open.call.to}) {
        const int rank = peer < 0 ? group_.rank() : members[static_cast<std::size_t>(peer)];
        if (rank != group_.rank() && std::ranges::count(to_ask, rank) == 0) to_ask.push_back(rank);
      }
      inquiries.push_back({std::move(open), std::move(to_ask), is_leader});
    }
    call(inquiries.back());
  }
  inquiries_ = std::move(inquiries);
}

/// Asks ranks that have answered again; for ranks that have not, asks the witnesses.
void HangDiagnosis::call(Inquiry& inquiry) {
  const auto is_old = [&](const Asked& asked) { return now_ - asked.at > limits_.answer / 2; };
  for (const int rank : inquiry.to_ask) {
    Asked& member = inquiry.asked[rank];
    if (member.number == 0) {
      ask(inquiry, member, rank);
    } else if (!member.waiting) {
      // Only at its limit can a hanging rank be distinguished from a slow one.
      const auto& answer = *member.answer;
      const bool at_limit = answer.has_come == 0 && answer.stalled <= answer.limit &&
                            answer.stalled + to_seconds(now_ - member.at) > answer.limit;
      if (at_limit || is_old(member)) ask(inquiry, member, rank);
    } else if (is_old(member)) {
      for (const int witness : witnesses_of(rank, hosts_)) {
        if (witness == group_.rank()) continue;
        Asked& asked = inquiry.asked[witness];
        if (!asked.waiting && is_old(asked)) ask(inquiry, asked, witness);
      }
    }
  }
}

void HangDiagnosis::ask(const Inquiry& inquiry, Asked& asked, int rank) {
  asked.number = questions_.ask(rank, {.members = inquiry.collective.call.group,
                                       .collective = inquiry.collective.call.number,
                                       .what = name_hash(title(inquiry.collective.call))});
  asked.at = now_;
  asked.waiting = true;
}

/// Returns true if a rank that does not answer is alive behind a cut link: it was heard after it
/// was asked or, if its whole host cannot be reached from here, the host's last rank was. A rank
/// that is not heard is left to the rank that listens to it.
bool HangDiagnosis::cut_off(const Inquiry& inquiry, int rank) const {
  const auto found = inquiry.asked.find(rank);
  if (found == inquiry.asked.end()) return false;
  const Asked& suspect = found->second;
  if (!suspect.waiting || now_ - suspect.at <= limits_.answer) return false;
  const auto heard_since_then = [&](double silence, Clock::time_point at) {
    return silence + to_seconds(2 * limits_.interval) < to_seconds(at - suspect.at);
  };
  for (const int witness : witnesses_of(rank, hosts_)) {
    if (witness == group_.rank()) return heard_since_then(mine_.silence, now_);
    const auto asked = inquiry.asked.find(witness);
    if (asked == inquiry.asked.end()) return false;
    const auto& [number, at, waiting, answer] = asked->second;
    if (!waiting) return heard_since_then(answer->silence, at);
    if (now_ - at <= limits_.answer / 2) return false;  // it may still answer
  }
  return mine_.stalled > mine_.limit;
}

bool HangDiagnosis::late(const Inquiry& inquiry, int rank) const {
  const auto found = inquiry.asked.find(rank);
  if (found == inquiry.asked.end() || !found->second.answer) return false;
  const auto& [number, at, waiting, answer] = found->second;
  return answer->has_come == 0 && !(waiting && now_ - at > limits_.answer);
}

/// Returns true if the rank is late or, as its host's leader, knows of a late one.
bool HangDiagnosis::awaits_late(const Inquiry& inquiry, int rank) const {
  if (late(inquiry, rank)) return true;
  const auto found = inquiry.asked.find(rank);
  if (found == inquiry.asked.end() || !found->second.answer) return false;
  const auto& [number, at, waiting, answer] = found->second;
  return answer->awaits_late != 0 && !(waiting && now_ - at > limits_.answer);
}

/// Returns true if this rank, as its host's leader, knows of a late rank. Answers from one host are
/// not passed on to another, and only leaders answer; otherwise ranks could keep each other waiting
/// for one that has arrived.
bool HangDiagnosis::knows_of_late(const Question& question, int source) const {
  const auto inquiry = std::ranges::find_if(inquiries_, [&](const Inquiry& one) {
    return one.collective.call.group == question.members &&
           one.collective.call.number == question.collective;
  });
  if (inquiry == inquiries_.end() || !inquiry->is_leader) return false;
  return std::ranges::any_of(inquiry->to_ask, [&](int rank) {
    return (on_my_host(source) || on_my_host(rank)) && awaits_late(*inquiry, rank);
  });
}

bool HangDiagnosis::differs(const Inquiry& inquiry, int rank) const {
  const auto found = inquiry.asked.find(rank);
  return found != inquiry.asked.end() && found->second.answer && found->second.answer->differs != 0;
}

/// Returns true if a late rank exceeds its limit. If it is in another collective, it may itself
/// wait for the rank at fault: that one is reported first.
bool HangDiagnosis::to_blame(const Inquiry& inquiry, int rank) const {
  if (!late(inquiry, rank)) return false;
  const auto& answer = *inquiry.asked.at(rank).answer;
  const double more = answer.in_collective != 0 ? to_seconds(limits_.answer) : 0;
  return answer.stalled > answer.limit + more;
}

bool HangDiagnosis::waits_for_another() const {
  return std::ranges::any_of(inquiries_, [&](const Inquiry& inquiry) {
    return std::ranges::any_of(inquiry.to_ask,
                               [&](int rank) { return awaits_late(inquiry, rank); });
  });
}

/// Returns whether this rank is in the same collective as most ranks that have answered, itself
/// included.
HangDiagnosis::Standing HangDiagnosis::standing(const Inquiry& inquiry) const {
  std::int64_t same = 1;
  std::int64_t others = 0;
  for (const auto& [rank, asked] : inquiry.asked)
    if (asked.answer) ++(differs(inquiry, rank) || late(inquiry, rank) ? others : same);
  if (same == others) return Standing::undecided;
  return same > others ? Standing::with_most : Standing::with_few;
}

std::optional<Diagnosis> HangDiagnosis::diagnose() {
  for (Inquiry& inquiry : inquiries_) {
    const auto faulty_rank = std::ranges::find_if(inquiry.to_ask, [&](int rank) {
      return cut_off(inquiry, rank) || differs(inquiry, rank) || to_blame(inquiry, rank);
    });
    if (faulty_rank == inquiry.to_ask.end()) {
      inquiry.found.reset();
      continue;
    }
    if (!inquiry.found) inquiry.found = now_;
    const bool link = cut_off(inquiry, *faulty_rank);
    const bool other = !link && differs(inquiry, *faulty_rank);
    auto time = turn(inquiry, *faulty_rank, link || other);
    // Another rank may know better who is alone.
    if (!link && standing(inquiry) == (other ? Standing::undecided : Standing::with_few))
      time += 8 * limits_.answer / 10;
    if (now_ - *inquiry.found < time) continue;
    if (other) return is_in_another(inquiry, *faulty_rank);
    return link ? link_is_cut(inquiry, *faulty_rank) : has_not_come(inquiry, *faulty_rank);
  }
  return {};
}

/// Returns how long the diagnosis must hold before this rank reports it: an answer may be in
/// flight, and others report first. For a broken link that is the lower rank, and the first on its
/// host; for a late rank the first rank that waits for it, unless only this one has asked it.
HangDiagnosis::Clock::duration HangDiagnosis::turn(const Inquiry& inquiry, int faulty_rank,
                                                   bool link) const {
  const int own = group_.rank();
  const auto& ranks = inquiry.collective.members->ranks;
  std::int64_t before = 0;
  if (link) {
    const bool alone = alone_can_report(own, faulty_rank, hosts_);
    before = (own > faulty_rank && !alone ? 1 : 0) + (own > 0 && on_my_host(own - 1) ? 1 : 0);
  } else if (first_on_host_of(faulty_rank, ranks, hosts_) == faulty_rank) {
    for (const int rank : ranks) {
      if (rank == own || before == 2) break;
      before += rank == faulty_rank ? 0 : 1;
    }
  }
  return (1 + 4 * before) * limits_.answer / 10;
}

void HangDiagnosis::shut_down(bool has_reported) {
  questions_.shut_down(
      has_reported,
      [this](int source, const Question& question) { return answer(source, question); },
      [this](int source, const Answer& answer) { take(source, answer); });
}

}  // namespace llamesh::comm
