#include <fmt/format.h>

#include <algorithm>

#include "comm/roll_call.hpp"
#include "core/clock.hpp"

// Verdicts from a roll call, as text and in parts.
namespace llamesh::comm {
std::string RollCall::name_of(int rank) const {
  return fmt::format("rank {} on {}", rank, host_of(rank));
}

Verdict RollCall::link_is_cut(const Roll& roll, int other) const {
  const int own = group_.rank();
  const auto [first, second] = std::minmax(own, other);
  const auto doing = describe(mine_.activity, mine_.step) + ", in the " + roll.collective.what;
  Verdict verdict{
      fmt::format("{} and {} cannot reach each other: rank {} has been {} for {:.0f} s, and rank "
                  "{} is alive but does not answer it",
                  name_of(first), name_of(second), own, doing,
                  to_seconds(now_ - roll.collective.since), other),
      {first, second},
      {host_of(first), host_of(second)},
      doing,
      "link",
      mine_.activity,
      mine_.step};
  set_waiting(verdict, roll.collective);
  return verdict;
}

Verdict RollCall::is_in_another(const Roll& roll, int other) const {
  const int own = group_.rank();
  const auto most = standing(roll);
  std::vector<int> blamed{std::min(own, other), std::max(own, other)};
  if (most != Standing::undecided) blamed = {most == Standing::with_most ? other : own};
  std::vector<std::string> hosts;
  for (const int rank : blamed) hosts.push_back(host_of(rank));
  Verdict verdict{fmt::format("{} is in the {}, and {} is {}: they have been asked for different "
                              "collectives (number {} along {}){}",
                              name_of(own), roll.collective.what, name_of(other),
                              roll.asked.at(other).answer->doing.data(), roll.collective.number,
                              roll.collective.members->name,
                              blamed.size() == 1
                                  ? fmt::format(", and most ranks are not with rank {}", blamed[0])
                                  : ""),
                  blamed,
                  hosts,
                  describe(mine_.activity, mine_.step) + ", in the " + roll.collective.what,
                  "order",
                  mine_.activity,
                  mine_.step};
  set_waiting(verdict, roll.collective);
  return verdict;
}

Verdict RollCall::has_not_come(const Roll& roll, int other) const {
  const Answer& answer = *roll.asked.at(other).answer;
  const std::string doing = answer.doing.data();
  Verdict verdict{
      fmt::format("{} has not come to the {} for {:.0f} s: it is {}", name_of(other),
                  roll.collective.what, to_seconds(now_ - roll.collective.since), doing),
      {other},
      {host_of(other)},
      doing,
      "late",
      static_cast<Activity>(answer.activity),
      answer.step};
  set_waiting(verdict, roll.collective);
  return verdict;
}

}  // namespace llamesh::comm
