#include "comm/diagnosis/collective_fingerprint.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/calls/flight_record.hpp"
#include "comm/diagnosis/fingerprint_check.hpp"
#include "comm/mpi/exchange.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/process.hpp"

namespace llamesh::comm {
namespace {

constexpr std::size_t max_axes = 16;

/// Hash over a rank's calls along one axis.
struct Called {
  std::uint64_t group = 0;
  std::uint64_t hash = 0;
};
using CalledByAxis = std::array<Called, max_axes>;

struct Difference {
  std::size_t axis;
  std::vector<int> blamed;  // world ranks; the whole group if there is no majority
  bool decided;             // by majority
  int other;                // a rank that differs from the first blamed one
};

/// Finds the minority in a group. If the group has no majority, the ranks in all groups along the
/// axis decide, since they run the same program.
Difference difference_in(std::size_t axis, const std::vector<int>& group,
                         const std::vector<std::uint64_t>& hashes) {
  std::vector<std::uint64_t> of_group;
  for (const int rank : group) of_group.push_back(hashes[static_cast<std::size_t>(rank)]);
  std::vector<int> blamed;
  for (const int member : minority_of(of_group))
    blamed.push_back(group[static_cast<std::size_t>(member)]);
  if (blamed.size() == group.size()) {
    const auto of_all = minority_of(hashes);
    std::erase_if(blamed, [&](int rank) { return std::ranges::count(of_all, rank) == 0; });
    if (blamed.empty()) blamed = group;
  }
  const auto hash_of = [&](int rank) { return hashes[static_cast<std::size_t>(rank)]; };
  const auto other = std::ranges::find_if(
      group, [&](int rank) { return hash_of(rank) != hash_of(blamed.front()); });
  return {axis, blamed, blamed.size() < group.size(), *other};
}

/// Returns the first difference; the same on all ranks.
std::optional<Difference> find_difference(const std::vector<CalledByAxis>& by_rank,
                                          std::size_t axes) {
  for (std::size_t axis = 0; axis < axes; ++axis) {
    std::vector<std::uint64_t> hashes;
    std::map<std::uint64_t, std::vector<int>> groups;
    for (const auto& called : by_rank) {
      groups[called[axis].group].push_back(static_cast<int>(hashes.size()));
      hashes.push_back(called[axis].hash);
    }
    for (const auto& [id, group] : groups)
      for (const int rank : group)
        if (hashes[static_cast<std::size_t>(rank)] !=
            hashes[static_cast<std::size_t>(group.front())])
          return difference_in(axis, group, hashes);
  }
  return {};
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), lines.back().size() + 1));
  }
  return lines;
}

}  // namespace

std::uint64_t fingerprint_of(std::span<const CollectiveCall> calls) {
  RunningHash hash;
  for (const auto& call : calls) {
    const auto one = call.fingerprint();
    hash.add(&one, sizeof(one));
  }
  return hash.value();
}

std::string first_difference(const std::string& mine, int rank, const std::string& theirs,
                             int other) {
  const auto own = lines_of(mine);
  const auto others = lines_of(theirs);
  const auto [at, there] = std::ranges::mismatch(own, others);
  if (at == own.end() && there == others.end()) return "";
  const auto difference = static_cast<std::size_t>(at - own.begin());
  const auto first = difference - std::min<std::size_t>(difference, 3);
  std::string text;
  const auto show = [&](int whose, const std::vector<std::string_view>& lines) {
    text += fmt::format("rank {} called {} collectives in this step:\n", whose, lines.size());
    for (auto i = first; i < std::min(lines.size(), difference + 4); ++i)
      text += fmt::format("  {} {}: {}\n", i == difference ? ">" : " ", i + 1, lines[i]);
    if (difference >= lines.size()) text += "  > nothing more\n";
  };
  show(rank, own);
  show(other, others);
  return text;
}

namespace {

/// Fails the check: world rank 0 logs both sides, and the first blamed rank reports. `mine`: this
/// rank's calls along the axis of that name.
void fail_on(const Communicator& world, const std::string& name,
             std::span<const CollectiveCall> mine, const Difference& difference) {
  const auto& [number, blamed, decided, other] = difference;
  std::string own;
  for (const auto& call : mine) own += describe(call) + '\n';
  const auto differing = world.broadcast(own, blamed.front());
  const auto theirs = world.broadcast(own, other);
  if (world.rank() == 0)
    spdlog::error("debug.contract: ranks {} and {} differ along {}\n{}", blamed.front(), other,
                  name, first_difference(differing, blamed.front(), theirs, other));
  agree(world, [&, &first = blamed.front(), &all = blamed, &by_majority = decided, &peer = other] {
    if (world.rank() != first) return;
    if (by_majority)
      fail(ExitCode::internal_error,
           "debug.contract: {} on {} has called other collectives along {} in this step than the "
           "others{}; the log shows its calls and those of rank {} around the first difference",
           list_of_ranks(std::span(&first, 1)), this_process().host, name,
           all.size() > 1 ? ", as have " + list_of_ranks(std::span(all).subspan(1)) : "", peer);
    fail(ExitCode::internal_error,
         "debug.contract: {} have called different collectives along {} in this step, without a "
         "majority; the log shows both sides around the first difference",
         list_of_ranks(all), name);
  });
}

}  // namespace

void check_fingerprints(const Communicator& world, std::span<const Members* const> groups) {
  expects(groups.size() <= max_axes, "{} axes, at most {}", groups.size(), max_axes);
  std::vector<std::vector<CollectiveCall>> calls;
  CalledByAxis mine{};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    calls.push_back(FlightRecorder::instance().take_calls(groups[i]->id));
    mine[i] = {groups[i]->id, fingerprint_of(calls[i])};
  }
  const auto all = all_gather(world, mine, "the collectives of the step");
  if (const auto difference = find_difference(all, groups.size()))
    fail_on(world, groups[difference->axis]->name, calls[difference->axis], *difference);
}

}  // namespace llamesh::comm
