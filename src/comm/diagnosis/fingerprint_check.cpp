#include "comm/diagnosis/fingerprint_check.hpp"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "comm/mpi/exchange.hpp"
#include "comm/mpi/session.hpp"
#include "core/process.hpp"

namespace llamesh::comm {
namespace {

/// Ranks that made each call, ordered by their first rank.
using ByCall = std::vector<std::pair<const CollectiveCall*, std::vector<int>>>;

ByCall by_call_of(std::span<const CollectiveCall> by_rank, const std::vector<int>& world_ranks) {
  ByCall calls;
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    auto found = std::ranges::find_if(calls, [&](const auto& entry) {
      return entry.first->fingerprint() == by_rank[i].fingerprint();
    });
    if (found == calls.end()) found = calls.insert(calls.end(), {&by_rank[i], {}});
    found->second.push_back(world_ranks[i]);
  }
  return calls;
}

}  // namespace

std::vector<int> minority_of(std::span<const std::uint64_t> by_rank) {
  std::map<std::uint64_t, std::size_t> count;
  for (const auto value : by_rank) ++count[value];
  std::vector<int> others;
  for (std::size_t i = 0; i < by_rank.size(); ++i)
    if (2 * count[by_rank[i]] <= by_rank.size()) others.push_back(static_cast<int>(i));
  return others;
}

std::string list_of_ranks(std::span<const int> ranks) {
  constexpr std::size_t most = 16;
  const auto shown = ranks.first(std::min(ranks.size(), most));
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(shown, ", "),
                     ranks.size() > most ? fmt::format(" and {} more", ranks.size() - most) : "");
}

void FingerprintCheck::next(const CollectiveCall& mine, std::span<const std::uint64_t> by_rank,
                            const Communicator& group) {
  ++number_;
  if (std::ranges::adjacent_find(by_rank, std::not_equal_to<>{}) != by_rank.end())
    differ(all_gather(group, mine, "what the ranks call"), group);
  former_[static_cast<std::size_t>(number_) % former_.size()] = mine;
}

void FingerprintCheck::differ(std::span<const CollectiveCall> by_rank,
                              const Communicator& group) const {
  const int own_rank = group.rank();
  const auto calls = by_call_of(by_rank, group_->ranks);
  if (own_rank == 0) {
    std::string lines;
    for (auto n = std::max<std::int64_t>(1, number_ - 3); n < number_; ++n)
      lines += fmt::format("    {}: {}\n", n,
                           describe(former_[static_cast<std::size_t>(n) % former_.size()]));
    for (const auto& [call, ranks] : calls)
      lines += fmt::format("  > {}: {}: {}\n", number_, describe(*call), list_of_ranks(ranks));
    spdlog::error("ranks are asked for different collectives along {}, from number {} on:\n{}",
                  group_->name, number_, lines);
  }
  group.barrier("the log of the calls");  // the error that names a rank is the last line
  std::vector<std::uint64_t> hashes;
  for (const auto& call : by_rank) hashes.push_back(call.fingerprint());
  const auto blamed = minority_of(hashes);
  if (own_rank != blamed.front()) throw PeerFailure(ExitCode::internal_error);
  std::vector<std::string> who;
  for (const auto& [call, ranks] : calls)
    who.push_back(fmt::format("{} for the {}", list_of_ranks(ranks), describe(*call)));
  fail(ExitCode::internal_error,
       "{} on {} {} along {} (number {} there): {}; this is a bug, and the log shows the calls "
       "before",
       list_of_ranks(std::span(&group_->ranks[static_cast<std::size_t>(own_rank)], 1)),
       this_process().host,
       blamed.size() < by_rank.size()
           ? "is asked for another collective than the others"
           : "and others are asked for different collectives, without a majority,",
       group_->name, number_, fmt::join(who, ", "));
}

}  // namespace llamesh::comm
