#include "comm/diagnosis/host_survey.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/calls/flight_record.hpp"
#include "core/clock.hpp"

namespace llamesh::comm {
namespace {

constexpr int survey_tag = 3;  // 0: heartbeats, 1 and 2: hang diagnosis

/// Names the collective in which this rank waits for `rank`.
void set_waiting_for(int rank, Diagnosis& diagnosis) {
  for (const auto& open : FlightRecorder::instance().in_progress())
    if (std::ranges::count(open.members->ranks, rank) > 0) return set_waiting(diagnosis, open);
}

}  // namespace

Part part_of(int reached, int hosts, bool with_rank_0) {
  if (2 * reached == hosts) return with_rank_0 ? Part::majority : Part::half;
  return 2 * reached > hosts ? Part::majority : Part::minority;
}

HostSurvey::HostSurvey(const Communicator& group, const std::vector<std::string>& hosts,
                       const Watchdog::Limits& limits)
    : group_(group), hosts_(hosts), limits_(limits), questions_(group, survey_tag) {
  std::map<std::string, int> first;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto [leader, is_new] = first.emplace(hosts[static_cast<std::size_t>(rank)], rank);
    leader_of_.push_back(leader->second);
    if (is_new) leaders_.push_back(rank);
  }
}

void HostSurvey::poll(std::optional<int> suspect) {
  now_ = Clock::now();
  serve();
  if (!suspect) return;
  for (const int leader : leaders_) probe(leader, leader_of(*suspect));
}

void HostSurvey::serve() {
  questions_.serve([this](int, const Question& question) { return answer(question); },
                   [this](int source, const Answer& answer) { take(source, answer); });
}

/// Answers a question. If this host has not asked the suspect's host yet, the next question gets
/// that answer.
HostSurvey::Answer HostSurvey::answer(const Question& question) {
  if (question.suspect < 0 || question.suspect >= group_.size()) return {};
  const auto suspect = static_cast<int>(question.suspect);
  probe(suspect, nobody);
  return {.reaches_suspect = reaches(suspect)};
}

void HostSurvey::take(int source, const Answer& answer) {
  const auto found = probes_.find(source);
  if (found == probes_.end() || found->second.number != answer.number) return;
  auto& probe = found->second;
  probe.waiting = false;
  probe.heard = probe.asked;
  probe.reaches_suspect = answer.reaches_suspect != 0;
}

/// Asks again if the newest answer is old. An unanswered question stays pending.
void HostSurvey::probe(int leader, std::int64_t suspect) {
  if (leader == leader_of(group_.rank())) return;
  auto& probe = probes_[leader];
  const bool is_new = probe.number == 0;
  if (probe.waiting || (!is_new && now_ - probe.asked <= limits_.answer / 2)) return;
  probe.number = questions_.ask(leader, {.suspect = suspect});
  probe.asked = now_;
  probe.waiting = true;
}

/// Returns true if the newest answer is recent. A host that answers is asked again after half of
/// `answer`, so its newest answer never gets this old.
bool HostSurvey::reaches(int leader) const {
  if (leader == leader_of(group_.rank())) return true;
  const auto found = probes_.find(leader);
  return found != probes_.end() && found->second.heard &&
         now_ - *found->second.heard <= 2 * limits_.answer;
}

int HostSurvey::leader_of(int rank) const {
  return leader_of_[static_cast<std::size_t>(rank)];
}

HostSurvey::Findings HostSurvey::findings(int suspect) const {
  Findings found{.hosts = static_cast<int>(leaders_.size()), .reached = 0};
  for (const int leader : leaders_) {
    if (!reaches(leader)) continue;
    ++found.reached;
    const auto probe = probes_.find(leader);
    if (probe != probes_.end() && leader != leader_of(suspect) && probe->second.reaches_suspect)
      ++found.reach_suspect;
  }
  found.part = part_of(found.reached, found.hosts, reaches(leader_of(0)));
  const auto probe = probes_.find(leader_of(suspect));
  found.suspect_is_silent = probe != probes_.end() && probe->second.waiting &&
                            now_ - probe->second.asked > limits_.answer / 2;
  return found;
}

void HostSurvey::shut_down(bool has_reported) {
  questions_.shut_down(
      has_reported, [](int, const Question&) { return Answer{}; },  // nobody is asked any more
      [this](int source, const Answer& answer) { take(source, answer); });
}

std::optional<Diagnosis> HostSurvey::diagnose(const SilentRank& suspect,
                                              const HangDiagnosis::RankStatus& mine) const {
  if (suspect.silent <= suspect.limit) return {};
  return diagnose(suspect, mine, findings(suspect.rank));
}

std::optional<Diagnosis> HostSurvey::diagnose(const SilentRank& suspect,
                                              const HangDiagnosis::RankStatus& mine,
                                              const Findings& found) const {
  const auto grace = std::max<Clock::duration>(suspect.limit / 6, 3 * limits_.interval);
  if (found.part != Part::majority && suspect.silent <= suspect.limit + grace) return {};
  if (found.part == Part::minority) return isolated(found, suspect);
  if (found.suspect_is_silent && found.reach_suspect > 0) return link_is_cut(found, suspect, mine);
  return lost(found, suspect);
}

std::string HostSurvey::name_of(int rank) const {
  return fmt::format("rank {} on {}", rank, host_of(rank));
}

Diagnosis HostSurvey::isolated(const Findings& found, const SilentRank& suspect) const {
  Diagnosis diagnosis;
  diagnosis.line = fmt::format(
      "{} has heard from {} of {} hosts, its own included, for {:.0f} s: it seems to be cut off, "
      "and "
      "leaves the verdict to the others",
      name_of(group_.rank()), found.reached, found.hosts, to_seconds(suspect.silent));
  diagnosis.of_minority = true;
  return diagnosis;
}

Diagnosis HostSurvey::link_is_cut(const Findings& found, const SilentRank& suspect,
                                  const HangDiagnosis::RankStatus& mine) const {
  const int own = group_.rank();
  const auto [first, second] = std::minmax(suspect.rank, own);
  Diagnosis diagnosis{
      fmt::format("{} and {} cannot reach each other: rank {} has received no heartbeat for "
                  "{:.0f} s, and {} other {} {}",
                  name_of(first), name_of(second), own, to_seconds(suspect.silent),
                  found.reach_suspect, found.reach_suspect == 1 ? "host reaches" : "hosts reach",
                  host_of(suspect.rank)),
      {first, second},
      {host_of(first), host_of(second)},
      describe(mine.activity, mine.step),
      "link",
      mine.activity,
      mine.step};
  set_waiting_for(suspect.rank, diagnosis);
  return diagnosis;
}

Diagnosis HostSurvey::lost(const Findings& found, const SilentRank& suspect) const {
  const auto doing = describe(suspect.activity, suspect.step);
  std::string who;
  if (2 * found.reached == found.hosts)
    who =
        fmt::format("; {} hears from {} of {} hosts, its own included: either side may be cut off",
                    host_of(group_.rank()), found.reached, found.hosts);
  else if (found.suspect_is_silent)
    who = fmt::format("; {} answers no other host", host_of(suspect.rank));
  Diagnosis diagnosis{
      fmt::format("{} has sent no heartbeat for {:.0f} s; at the last one it was {}{}",
                  name_of(suspect.rank), to_seconds(suspect.silent), doing, who),
      {suspect.rank},
      {host_of(suspect.rank)},
      doing,
      "lost",
      suspect.activity,
      suspect.step};
  set_waiting_for(suspect.rank, diagnosis);
  return diagnosis;
}

}  // namespace llamesh::comm
