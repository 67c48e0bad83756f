#include "plan/dry_run_checks.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "checkpoint/format/state.hpp"
#include "core/error.hpp"
#include "core/log.hpp"

namespace llamesh::plan {
namespace {

constexpr auto violated = ExitCode::internal_error;

bool is_within(const Box& part, const Shape& array) {
  if (part.shape.size() != array.size()) return false;
  for (std::size_t d = 0; d < array.size(); ++d)
    if (part.begin[d] < 0 || part.shape[d] < 0 || part.begin[d] > array[d] - part.shape[d])
      return false;
  return true;
}

void check_parts(std::string_view what, const Shape& array, const std::vector<Box>& parts) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!is_within(parts[i], array)) fail(violated, "part {} of {} is not within it", i, what);
    for (std::size_t j = 0; j < i; ++j)
      if (overlap(parts[i], parts[j])) fail(violated, "parts {} and {} of {} overlap", j, i, what);
    sum += parts[i].numel();
  }
  if (sum != numel(array))
    fail(violated, "the {} parts of {} have {} elements, of {}", parts.size(), what, sum,
         numel(array));
}

/// The ranges have each element of parts of these sizes once.
void check_ranges(std::string_view what, std::string_view verb,
                  const std::vector<std::int64_t>& parts, std::vector<RankRange> ranges) {
  const auto by_place = [](const RankRange& r) { return std::pair(r.part, r.begin); };
  if (!std::ranges::is_sorted(ranges, {}, by_place)) std::ranges::sort(ranges, {}, by_place);
  auto next = ranges.begin();
  for (int part = 0; part < std::ssize(parts); ++part) {
    const auto whole = parts[static_cast<std::size_t>(part)];
    std::int64_t at = 0;
    int former = -1;  // who has the elements before `at`
    for (; next != ranges.end() && next->part == part; ++next) {
      if (next->begin > at) break;
      if (next->begin < at)
        fail(violated, "element {} of part {} of {} is {} by rank {} and by rank {}", next->begin,
             part, what, verb, former, next->rank);
      at = next->begin + next->count;
      former = next->rank;
    }
    if (at > whole)
      fail(violated, "rank {} has {} elements of part {} of {} {}, which has {}", former, at, part,
           what, verb, whole);
    if (at < whole)
      fail(violated, "element {} of part {} of {} is {} by no rank", at, part, what, verb);
  }
  if (next != ranges.end())
    fail(violated, "rank {} has a part {} of {} {}, which has {} parts", next->rank, next->part,
         what, verb, parts.size());
}

std::vector<std::int64_t> sizes_of(const std::vector<Box>& parts) {
  std::vector<std::int64_t> sizes;
  for (const auto& part : parts) sizes.push_back(part.numel());
  return sizes;
}

/// Who owns what of a parameter, in each replica of the state.
struct Owners {
  model::ParameterId parameter;
  comm::AxisSet replicated;
  std::vector<std::vector<RankRange>> copies;
};

std::vector<Owners> owners_of(const sharding::ShardLayout& layout, std::size_t unit) {
  const auto& dims = layout.dims();
  std::vector<Owners> owners;
  for (const auto id : layout.units()[unit].parameters) {
    const auto& placement = layout.placement(id);
    const auto replicated = placement.replicated(dims) | placement.apart;
    owners.push_back({id, replicated, {}});
    auto& copies = owners.back().copies;
    copies.resize(static_cast<std::size_t>(dims.group_size(replicated)));
    for (auto& ranges : copies)
      ranges.reserve(static_cast<std::size_t>(dims.ranks()) / copies.size());
  }
  for (int rank = 0; rank < dims.ranks(); ++rank) {
    auto of = owners.begin();
    for (const auto& piece : layout.pieces(unit, rank)) {  // in the order of the parameters
      while (of->parameter != piece.parameter) ++of;
      if (!layout.placement(piece.parameter).counts_on(dims, rank)) continue;
      const auto replica = static_cast<std::size_t>(dims.rank_in_group(of->replicated, rank));
      of->copies[replica].push_back(
          {rank, layout.part_of(piece.parameter, rank), piece.begin, piece.count});
    }
  }
  return owners;
}

}  // namespace

void check_each_once(std::string_view what, std::string_view verb, const Shape& array,
                     const std::vector<Box>& parts, std::vector<RankRange> ranges) {
  check_parts(what, array, parts);
  check_ranges(what, verb, sizes_of(parts), std::move(ranges));
}

void check_owned_once(const sharding::ShardLayout& layout) {
  ProgressLog progress("dry run: units whose owners are checked", std::ssize(layout.units()));
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    for (auto& [id, replicated, copies] : owners_of(layout, u)) {
      const auto& parameter = layout.table()[id];
      const auto parts = layout.parts(id);
      check_parts(parameter.name, parameter.shape, parts);
      const auto sizes = sizes_of(parts);
      for (auto& ranges : copies) check_ranges(parameter.name, "owned", sizes, std::move(ranges));
    }
    progress.step();
  }
}

namespace {

/// Parts of a checkpoint's datasets that ranks write.
class Written {
 public:
  Written(const sharding::ShardLayout& layout, const std::vector<checkpoint::GroupContents>& groups)
      : parameters_(layout.table().parameters),
        groups_(groups),
        ranges_(groups.size() * parameters_.size()) {
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      parts_.push_back(layout.parts(static_cast<model::ParameterId>(p)));
  }

  void add(int rank, const checkpoint::ShardSlice& h) {
    const auto p = model::index(h.parameter);
    auto& ranges = ranges_[h.group * parameters_.size() + p];
    BoxRange segment{parts_[p][static_cast<std::size_t>(h.part)], 0, 0};
    checkpoint::for_each_segment(h.count, [&](std::int64_t at, std::int64_t count) {
      segment.begin = h.begin + at;
      segment.count = count;
      for_each_box(segment, [&](const Box& hyperslab, std::int64_t first) {
        const auto elements = hyperslab.numel();
        ++all_.hyperslabs;
        all_.elements += elements;
        add_range(ranges, {rank, h.part, segment.begin + first, elements});
      });
    });
  }
  /// Throws unless each element is written once.
  CheckpointWrites check() {
    for (std::size_t d = 0; d < ranges_.size(); ++d) {
      const auto p = d % parameters_.size();
      if (!groups_[d / parameters_.size()].contain(parameters_[p])) continue;
      check_each_once(parameters_[p].name, "written", parameters_[p].shape, parts_[p],
                      std::move(ranges_[d]));
    }
    return all_;
  }

 private:
  /// Hyperslabs of a rank that follow one another are one range: there are many.
  static void add_range(std::vector<RankRange>& ranges, const RankRange& added) {
    auto* const last = ranges.empty() ? nullptr : &ranges.back();
    if (last && last->rank == added.rank && last->part == added.part &&
        last->begin + last->count == added.begin)
      last->count += added.count;
    else
      ranges.push_back(added);
  }

  const std::vector<model::Parameter>& parameters_;
  const std::vector<checkpoint::GroupContents>& groups_;
  std::vector<std::vector<Box>> parts_;         ///< by parameter
  std::vector<std::vector<RankRange>> ranges_;  ///< by dataset
  CheckpointWrites all_;
};

}  // namespace

CheckpointWrites check_written_once(const sharding::ShardLayout& layout,
                                    const std::vector<checkpoint::GroupContents>& groups) {
  const auto& dims = layout.dims();
  auto replicated = layout.replicated_axes();
  for (const auto& group : groups) replicated &= ~group.apart;
  Written written(layout, groups);
  ProgressLog progress("dry run: ranks whose part of a checkpoint is checked", dims.ranks());
  for (int holder = 0; holder < dims.ranks(); ++holder) {
    if (dims.rank_in_group(replicated, holder) != 0) continue;
    const auto rows = checkpoint::held_rows(layout, groups, holder);
    for (const int rank : dims.group(replicated, holder)) {
      for (const auto& holding : checkpoint::written_of(rows, dims, rank))
        written.add(rank, holding);
      progress.step();
    }
  }
  return written.check();
}

namespace {

/// What two ranks, of a group or of the world, do at the first place where they differ.
[[noreturn]] void fail_for(std::string_view group, int a, const std::vector<std::string>& of_a,
                           int b, const std::vector<std::string>& of_b) {
  const auto differ = std::ranges::mismatch(of_a, of_b);
  const auto text = [](auto at, const std::vector<std::string>& of) {
    return at == of.end() ? std::string("none") : *at;
  };
  fail(violated, "ranks {} and {} of {} differ: number {} is {} on rank {}, {} on rank {}", a, b,
       group, differ.in1 - of_a.begin() + 1, text(differ.in1, of_a), a, text(differ.in2, of_b), b);
}

std::vector<std::string> texts_of(const std::vector<comm::CollectiveCall>& calls) {
  std::vector<std::string> texts;
  for (const auto& call : calls) texts.push_back(describe(call));
  return texts;
}

std::vector<std::string> groups_of(const comm::CollectiveLog& log, const comm::ParallelDims& dims) {
  std::vector<std::string> texts;
  for (const auto& group : log.groups)
    texts.push_back(
        fmt::format("a group of {} along {}", dims.group_size(group.along), group.name));
  return texts;
}

void check_groups_are_made_alike(const comm::ParallelDims& dims, const RankClasses& classes,
                                 const std::vector<comm::CollectiveLog>& by_class) {
  const auto same = [](const comm::GroupCalls& a, const comm::GroupCalls& b) {
    return a.along == b.along && a.name == b.name;
  };
  for (std::size_t c = 1; c < by_class.size(); ++c)
    if (!std::ranges::equal(by_class[0].groups, by_class[c].groups, same))
      fail_for("the world", classes.first[0], groups_of(by_class[0], dims), classes.first[c],
               groups_of(by_class[c], dims));
}

/// Every rank is in the group once, at the place that it takes itself to be at.
void check_members(const comm::ParallelDims& dims, const comm::RankGroups& along,
                   std::string_view name, const std::vector<int>& group, std::vector<bool>& seen) {
  for (int i = 0; i < std::ssize(group); ++i) {
    const int member = group[static_cast<std::size_t>(i)];
    if (seen[static_cast<std::size_t>(member)] || dims.rank_in_group(along, member) != i)
      fail(violated, "rank {} is not once in a group along {}", member, name);
    seen[static_cast<std::size_t>(member)] = true;
  }
}

/// Returns true if a call moves data from one rank of a pair to the other.
bool is_transfer(const comm::GroupCalls& group, std::size_t call) {
  return group.along.first_pair >= 0 && group.calls[call].from != group.calls[call].to;
}

/// Each transfer has a sender and a receiver.
void check_transfers(const comm::GroupCalls& group, const std::vector<comm::CollectiveCall>& of_a,
                     const std::vector<comm::CollectiveCall>& of_b, int a, int b) {
  const auto sends = [](const comm::CollectiveCall& call) {
    return call.to != comm::CollectiveCall::none;
  };
  for (std::size_t i = 0; i < of_a.size(); ++i)
    if (is_transfer(group, i) && sends(of_a[i]) == sends(of_b[i]))
      fail(violated, "ranks {} and {} of a pair along {} both {} in call {}, {}", a, b, group.name,
           sends(of_a[i]) ? "send" : "receive", i + 1, describe(of_a[i]));
}

/// Takes all ranks through their calls, each of which blocks its rank; except transfers between
/// pipeline stages, which have their own streams (train::walk_pipeline()).
class BlockingRanks {
 public:
  BlockingRanks(const comm::ParallelDims& dims, const RankClasses& classes,
                const std::vector<comm::CollectiveLog>& by_class)
      : classes_(classes), done_(count(dims)) {
    for (const auto& log : by_class) orders_.push_back(blocking(log));
    for (const auto& group : by_class.front().groups) {
      auto& kind = kinds_.emplace_back(group.name, std::vector<int>(count(dims)),
                                       std::vector<std::vector<int>>(count(dims)),
                                       std::vector<std::size_t>(count(dims)));
      for (int rank = 0; rank < dims.ranks(); ++rank) {
        if (dims.rank_in_group(group.along, rank) != 0) continue;
        kind.members[at(rank)] = dims.group(group.along, rank);
        for (const int member : kind.members[at(rank)]) kind.first[at(member)] = rank;
      }
    }
  }

  void run() {
    std::vector<int> free(done_.size());
    std::iota(free.begin(), free.end(), 0);
    while (!free.empty()) {
      const int rank = free.back();
      free.pop_back();
      if (is_done(rank)) continue;
      auto& kind = next_of(rank);
      const auto first = at(kind.first[at(rank)]);
      if (++kind.arrived[first] < kind.members[first].size()) continue;
      kind.arrived[first] = 0;
      for (const int member : kind.members[first]) {
        ++done_[at(member)];
        free.push_back(member);
      }
    }
    for (int rank = 0; rank < std::ssize(done_); ++rank)
      if (!is_done(rank)) fail_at(rank);
  }

 private:
  /// All groups along some axes.
  struct Kind {
    std::string name;
    std::vector<int> first;                 ///< by rank: the lowest rank of its group
    std::vector<std::vector<int>> members;  ///< by such a rank
    std::vector<std::size_t> arrived;       ///< the same: how many have made the call
  };
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  static std::size_t count(const comm::ParallelDims& dims) { return at(dims.ranks()); }

  /// Returns the group of each call that blocks.
  static std::vector<std::size_t> blocking(const comm::CollectiveLog& log) {
    std::vector<std::size_t> order, called(log.groups.size());
    for (const auto g : log.order)
      if (!is_transfer(log.groups[g], called[g]++)) order.push_back(g);
    return order;
  }
  const std::vector<std::size_t>& order_of(int rank) const {
    return orders_[at(classes_.of_rank[at(rank)])];
  }
  bool is_done(int rank) const { return done_[at(rank)] == order_of(rank).size(); }
  Kind& next_of(int rank) { return kinds_[order_of(rank)[done_[at(rank)]]]; }

  [[noreturn]] void fail_at(int rank) {
    const auto& kind = next_of(rank);
    for (const int other : kind.members[at(kind.first[at(rank)])])
      if (!is_done(other) && &next_of(other) != &kind)
        fail(violated,
             "groups wait for each other: rank {} in its call {} along {} for rank {}, which is in "
             "its call {} along {}",
             rank, done_[at(rank)] + 1, kind.name, other, done_[at(other)] + 1,
             next_of(other).name);
    fail(violated, "rank {} waits forever in its call {} along {}", rank, done_[at(rank)] + 1,
         kind.name);
  }

  const RankClasses& classes_;
  std::vector<std::vector<std::size_t>> orders_;  ///< by class: the group of each call
  std::vector<std::size_t> done_;                 ///< by rank: calls
  std::vector<Kind> kinds_;
};

}  // namespace

void check_groups_agree(const comm::ParallelDims& dims, const RankClasses& classes,
                        const std::vector<comm::CollectiveLog>& by_class) {
  check_groups_are_made_alike(dims, classes, by_class);
  for (std::size_t g = 0; g < by_class.front().groups.size(); ++g) {
    const auto& [name, along, calls] = by_class.front().groups[g];
    const auto of_group = [&](int rank) -> const comm::GroupCalls& {
      const auto c = classes.of_rank[static_cast<std::size_t>(rank)];
      return by_class[static_cast<std::size_t>(c)].groups[g];
    };
    const auto of = [&](int rank) -> const std::vector<comm::CollectiveCall>& {
      return of_group(rank).calls;
    };
    std::set<std::pair<const void*, const void*>> equal;  // of the calls of two classes
    std::vector<std::pair<int, int>> pairs;
    std::vector<bool> seen(static_cast<std::size_t>(dims.ranks()));
    for (int rank = 0; rank < dims.ranks(); ++rank) {
      if (dims.rank_in_group(along, rank) != 0) continue;
      const auto group = dims.group(along, rank);
      check_members(dims, along, name, group, seen);
      if (along.first_pair >= 0 && group.size() == 2) pairs.emplace_back(group[0], group[1]);
      for (const int member : group) {
        if (&of(rank) == &of(member) || !equal.insert({&of(rank), &of(member)}).second) continue;
        if (of(rank) != of(member))
          fail_for(fmt::format("a group along {}", name), rank, texts_of(of(rank)), member,
                   texts_of(of(member)));
      }
    }
    if (std::ranges::count(seen, true) != dims.ranks())
      fail(violated, "not every rank is in a group along {}", name);
    for (const auto& [a, b] : pairs) check_transfers(of_group(a), of(a), of(b), a, b);
  }
  // Ranks that call along the same axes in the same order never wait in a circle: by induction all
  // of them come to their next call.
  const auto& order = by_class.front().order;
  const auto same = [&](const comm::CollectiveLog& log) { return log.order == order; };
  if (!std::ranges::all_of(by_class, same)) BlockingRanks(dims, classes, by_class).run();
}

}  // namespace llamesh::plan
