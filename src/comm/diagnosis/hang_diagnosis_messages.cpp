#include <fmt/format.h>

#include <algorithm>

#include "comm/diagnosis/hang_diagnosis.hpp"
#include "core/clock.hpp"

// Diagnoses as text and in parts.
namespace llamesh::comm {
std::string HangDiagnosis::name_of(int rank) const {
  return fmt::format("rank {} on {}", rank, host_of(rank));
}

Diagnosis HangDiagnosis::link_is_cut(const Inquiry& inquiry, int other) const {
  const int own = group_.rank();
  const auto [first, second] = std::minmax(own, other);
  const auto doing =
      describe(mine_.activity, mine_.step) + ", in the " + title(inquiry.collective.call);
  Diagnosis diagnosis{
      fmt::format("{} and {} cannot reach each other: rank {} has been {} for {:.0f} s, and rank "
                  "{} is alive but does not answer it",
                  name_of(first), name_of(second), own, doing,
                  to_seconds(now_ - inquiry.collective.since), other),
      {first, second},
      {host_of(first), host_of(second)},
      doing,
      "link",
      mine_.activity,
      mine_.step};
  set_waiting(diagnosis, inquiry.collective);
  return diagnosis;
}

Diagnosis HangDiagnosis::is_in_another(const Inquiry& inquiry, int other) const {
  const int own = group_.rank();
  const auto most = standing(inquiry);
  std::vector<int> blamed{std::min(own, other), std::max(own, other)};
  if (most != Standing::undecided) blamed = {most == Standing::with_most ? other : own};
  std::vector<std::string> hosts;
  for (const int rank : blamed) hosts.push_back(host_of(rank));
  Diagnosis diagnosis{
      fmt::format("{} is in the {}, and {} is {}: they have been asked for different "
                  "collectives (number {} along {}){}",
                  name_of(own), title(inquiry.collective.call), name_of(other),
                  inquiry.asked.at(other).answer->doing.data(), inquiry.collective.call.number,
                  inquiry.collective.members->name,
                  blamed.size() == 1
                      ? fmt::format(", and most ranks are not with rank {}", blamed[0])
                      : ""),
      blamed,
      hosts,
      describe(mine_.activity, mine_.step) + ", in the " + title(inquiry.collective.call),
      "order",
      mine_.activity,
      mine_.step};
  set_waiting(diagnosis, inquiry.collective);
  return diagnosis;
}

Diagnosis HangDiagnosis::has_not_come(const Inquiry& inquiry, int other) const {
  const Answer& answer = *inquiry.asked.at(other).answer;
  const std::string doing = answer.doing.data();
  Diagnosis diagnosis{fmt::format("{} has not come to the {} for {:.0f} s: it is {}",
                                  name_of(other), title(inquiry.collective.call),
                                  to_seconds(now_ - inquiry.collective.since), doing),
                      {other},
                      {host_of(other)},
                      doing,
                      "late",
                      static_cast<Activity>(answer.activity),
                      answer.step};
  set_waiting(diagnosis, inquiry.collective);
  return diagnosis;
}

}  // namespace llamesh::comm
