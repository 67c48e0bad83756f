#include "plan/step_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace llamesh::plan {
namespace {

using Numbers = std::vector<std::int64_t>;

/// Differences between a rank and the others.
struct Place {
  int stage = 0;    ///< in the pipeline
  int nodes = 0;    ///< the same number: groups along each set of axes are on as many nodes
  Numbers partial;  ///< piece after piece of its partial sums: the axes, and the count
  bool operator<(const Place& other) const {
    return std::tie(stage, nodes, partial) < std::tie(other.stage, other.nodes, other.partial);
  }
  std::int64_t elements() const {
    std::int64_t sum = 0;
    for (std::size_t i = 1; i < partial.size(); i += 2) sum += partial[i];
    return sum;
  }
};

void find_nodes(const train::Setup& setup, std::vector<Place>& places) {
  const auto& dims = setup.mesh;
  const auto all = dims.without_ones(dims.all());
  for (unsigned long set = 1; set < 1UL << all.size(); ++set) {
    const comm::AxisSet along(set);
    if ((along & ~all).any()) continue;
    std::map<std::pair<int, int>, int> known;  // by the number before, and the nodes
    for (int rank = 0; rank < dims.ranks(); ++rank) {
      if (dims.rank_in_group(along, rank) != 0) continue;
      const auto group = dims.group(along, rank);
      const int nodes = comm::nodes_of(group, setup.topology);
      for (const int member : group) {
        auto& number = places[static_cast<std::size_t>(member)].nodes;
        number = known.try_emplace({number, nodes}, static_cast<int>(known.size())).first->second;
      }
    }
  }
}

/// By number of a shard along these axes one of the ranks that have it, in one of these stages.
std::vector<int> holders(const comm::ParallelDims& dims, comm::AxisSet sharded,
                         const std::vector<int>& stages) {
  std::vector<int> ranks(static_cast<std::size_t>(dims.group_size(sharded)));
  for (int rank = 0; rank < dims.ranks(); ++rank)
    if (sharding::is_in_stage(stages, dims, rank))
      ranks[static_cast<std::size_t>(dims.rank_in_group(sharded, rank))] = rank;
  return ranks;
}

void find_partial(const train::Setup& setup, std::vector<Place>& places) {
  const auto& layout = *setup.layout;
  const auto& dims = setup.mesh;
  std::map<std::pair<unsigned long, std::vector<int>>, std::vector<int>> known;  // holders()
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const auto& unit = layout.units()[u];
    const auto is_partial = [&](model::ParameterId id) {
      return layout.placement(id).partial.any();
    };
    if (unit.frozen || std::ranges::none_of(unit.parameters, is_partial)) continue;
    auto& ranks = known[{unit.sharded.to_ulong(), unit.stages}];
    if (ranks.empty()) ranks = holders(dims, unit.sharded, unit.stages);
    for (const int holder : ranks)
      for (const auto& piece : layout.pieces(u, holder)) {
        if (!is_partial(piece.parameter)) continue;
        const auto axes = layout.placement(piece.parameter).partial.to_ulong();
        for (const int rank : dims.group(dims.all() & ~unit.sharded, holder)) {
          if (!layout.holds(u, rank)) continue;
          auto& partial = places[static_cast<std::size_t>(rank)].partial;
          partial.push_back(static_cast<std::int64_t>(axes));
          partial.push_back(piece.count);
        }
      }
  }
}

std::vector<Place> places_of(const train::Setup& setup) {
  std::vector<Place> places(static_cast<std::size_t>(setup.mesh.ranks()));
  for (int rank = 0; rank < setup.mesh.ranks(); ++rank)
    places[static_cast<std::size_t>(rank)].stage = setup.stage(rank);
  find_nodes(setup, places);
  find_partial(setup, places);
  return places;
}

}  // namespace

RankClasses rank_classes(const train::Setup& setup) {
  RankClasses classes;
  std::map<Place, int> known;
  int rank = 0;
  for (auto& place : places_of(setup)) {
    const auto [of_place, is_new] =
        known.try_emplace(std::move(place), static_cast<int>(known.size()));
    if (is_new) classes.first.push_back(rank);
    classes.of_rank.push_back(of_place->second);
    ++rank;
  }
  return classes;
}

RankClasses every_rank(const train::Setup& setup) {
  RankClasses classes{std::vector<int>(static_cast<std::size_t>(setup.mesh.ranks())), {}};
  std::iota(classes.of_rank.begin(), classes.of_rank.end(), 0);
  classes.first = classes.of_rank;
  return classes;
}

std::vector<int> peak_memory_candidates(const train::Setup& setup) {
  const auto places = places_of(setup);
  std::map<std::pair<int, int>, int> fullest;  // by stage and nodes
  for (int rank = 0; rank < std::ssize(places); ++rank) {
    const auto& place = places[static_cast<std::size_t>(rank)];
    auto& most = fullest.try_emplace({place.stage, place.nodes}, rank).first->second;
    if (place.elements() > places[static_cast<std::size_t>(most)].elements()) most = rank;
  }
  std::vector<int> ranks;
  for (const auto& [alike, rank] : fullest) ranks.push_back(rank);
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace llamesh::plan
