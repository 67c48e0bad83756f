#include "comm/contract.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/collectives.hpp"
#include "comm/exchange.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"

namespace llamesh::comm {
namespace {

constexpr std::size_t most_axes = 12;

/// What a rank has called along one axis.
struct Called {
  std::uint64_t group = 0;
  std::uint64_t hash = 0;
};
using CalledByAxis = std::array<Called, most_axes>;

struct Difference {
  std::size_t axis;
  int first, second;  // ranks of the world
};

/// The first one; the same on all ranks.
std::optional<Difference> find_difference(const std::vector<CalledByAxis>& by_rank,
                                          std::size_t axes) {
  for (std::size_t axis = 0; axis < axes; ++axis) {
    std::map<std::uint64_t, std::size_t> first_of_group;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      const Called& called = by_rank[rank][axis];
      const auto first = first_of_group.emplace(called.group, rank).first->second;
      if (by_rank[first][axis].hash != called.hash)
        return Difference{axis, static_cast<int>(first), static_cast<int>(rank)};
    }
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

std::uint64_t Contract::hash() const {
  RunningHash hash;
  for (const Call& call : calls_) {
    const auto line = fmt::format("{} {} {};", call.kind, name_of(call.dtype), call.bytes);
    hash.add(line.data(), line.size());
  }
  return hash.value();
}

std::string Contract::describe() const {
  std::string text;
  for (const Call& call : calls_)
    text += fmt::format("{}{}{}: {} bytes of {}\n", call.kind, *call.subject == '\0' ? "" : " of ",
                        call.subject, call.bytes, name_of(call.dtype));
  return text;
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

void check_contracts(const Communicator& world, std::span<Collectives* const> axes) {
  expects(axes.size() <= most_axes, "{} axes, at most {}", axes.size(), most_axes);
  CalledByAxis mine{};
  for (std::size_t i = 0; i < axes.size(); ++i)
    mine[i] = {axes[i]->members()->id, axes[i]->contract()->hash()};
  const auto all = all_gather(world, mine, "the contract of the step");
  const auto difference = find_difference(all, axes.size());
  if (difference) {
    const auto& [axis, first, second] = *difference;
    const auto own = axes[axis]->contract()->describe();
    const auto theirs = world.broadcast(own, second);
    agree(world, [&, rank = first, other = second, i = axis] {
      if (world.rank() != rank) return;
      const auto both = first_difference(own, rank, theirs, other);
      const auto& name = axes[i]->members()->name;
      spdlog::error("debug.contract: ranks {} and {} differ along {}\n{}", rank, other, name, both);
      fail(ExitCode::internal_error,
           "debug.contract: ranks {} and {} have called different collectives along {} in this "
           "step; the log shows both sides around the first difference",
           rank, other, name);
    });
  }
  for (auto* axis : axes) axis->contract()->clear();
}

}  // namespace llamesh::comm
