#include "comm/mesh/parallel_dims.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.hpp"

namespace llamesh::comm {
namespace {

Divides meaning_of(std::string_view axis) {
  if (axis == "replicate" || axis == "shard" || axis == "expert") return Divides::batch;
  if (axis == "pipeline") return Divides::layers;
  return axis == "context" ? Divides::sequence : Divides::nothing;
}

}  // namespace

MeshAxis::MeshAxis(std::string axis, int ranks)
    : name(std::move(axis)), size(ranks), divides(meaning_of(name)) {}

ParallelDims::ParallelDims(std::vector<MeshAxis> axes)
    : axes_(std::move(axes)), factors_(axes_.size()) {
  validate(axes_.size() <= AxisSet().size(), "a mesh of {} axes; {} at most", axes_.size(),
           AxisSet().size());
  std::int64_t ranks = 1;
  for (std::size_t i = axes_.size(); i-- > 0;) {
    const auto& [name, size, divides] = axes_[i];
    validate(size >= 1, "mesh axis {} has size {}; give 1 or more", name, size);
    validate(std::ranges::count(axes_, name, &MeshAxis::name) == 1,
             "mesh axis {} is named twice; rename one", name);
    factors_[i] = {i, size, static_cast<int>(ranks)};
    ranks *= size;
    validate(ranks <= std::numeric_limits<int>::max(), "the mesh {} has more ranks than MPI can",
             to_string(*this));
  }
}

ParallelDims ParallelDims::split(std::string_view name, int inner) const {
  const auto set = named({name});
  expects(set.any() && factors_.size() < set.size(), "the mesh {} has no axis {} left to split",
          to_string(*this), name);
  ParallelDims result = *this;
  std::size_t i = 0;
  while (!set[i]) ++i;
  auto& outer = result.factors_[i];
  validate(inner >= 1 && outer.size % inner == 0,
           "groups of {} do not divide the {} ranks of the mesh's axis {}", inner, outer.size,
           name);
  const Factor within{outer.axis, inner, outer.stride};
  outer.size /= inner;
  outer.stride *= inner;
  result.factors_.insert(result.factors_.begin() + static_cast<std::ptrdiff_t>(i) + 1, within);
  return result;
}

ParallelDims ParallelDims::with_replicas_apart(std::string_view axis) const {
  ParallelDims result = *this;
  for (auto& each : result.axes_)
    if (each.name == axis) each.divides = Divides::replicas;
  return result;
}

AxisSet ParallelDims::all() const {
  AxisSet set;
  for (std::size_t i = 0; i < factors_.size(); ++i) set.set(i);
  return set;
}

AxisSet ParallelDims::named(std::initializer_list<std::string_view> names) const {
  AxisSet set;
  for (std::size_t i = 0; i < factors_.size(); ++i)
    set.set(i, std::ranges::find(names, axes_[factors_[i].axis].name) != names.end());
  return set;
}

AxisSet ParallelDims::dividing(std::initializer_list<Divides> kinds) const {
  AxisSet set;
  for (std::size_t i = 0; i < factors_.size(); ++i)
    set.set(i, std::ranges::find(kinds, axes_[factors_[i].axis].divides) != kinds.end());
  return set;
}

AxisSet ParallelDims::inner(std::string_view name) const {
  AxisSet set;
  for (std::size_t i = 1; i < factors_.size(); ++i)
    set.set(i, factors_[i].axis == factors_[i - 1].axis && axes_[factors_[i].axis].name == name);
  return set;
}

AxisSet ParallelDims::without_ones(AxisSet axes) const {
  for (std::size_t i = 0; i < factors_.size(); ++i)
    if (factors_[i].size == 1) axes.reset(i);
  return axes;
}

std::vector<int> ParallelDims::coordinates(int rank) const {
  std::vector<int> result(axes_.size());
  for (const auto& factor : factors_)
    result[factor.axis] = result[factor.axis] * factor.size + coordinate(factor, rank);
  return result;
}

int ParallelDims::size_along(AxisSet along) const {
  int size = 1;
  for (std::size_t i = 0; i < factors_.size(); ++i)
    if (along[i]) size *= factors_[i].size;
  return size;
}

int ParallelDims::place_along(AxisSet along, int rank) const {
  int place = 0;
  for (std::size_t i = 0; i < factors_.size(); ++i)
    if (along[i]) place = place * factors_[i].size + coordinate(factors_[i], rank);
  return place;
}

std::vector<int> ParallelDims::group_along(AxisSet along, int rank) const {
  std::vector<int> ranks{rank};
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    if (!along[i]) continue;
    const auto& factor = factors_[i];
    std::vector<int> longer;
    for (const int first : ranks)
      for (int c = 0; c < factor.size; ++c)
        longer.push_back(first + (c - coordinate(factor, rank)) * factor.stride);
    ranks = std::move(longer);
  }
  return ranks;
}

int ParallelDims::group_size(const RankGroups& groups) const {
  const int size = size_along(groups.along);
  return groups.first_pair < 0 ? size : std::min(size, 2);
}

int ParallelDims::rank_in_group(const RankGroups& groups, int rank) const {
  const int place = place_along(groups.along, rank);
  if (groups.first_pair < 0) return place;
  const int size = size_along(groups.along);
  return (place - groups.first_pair + size) % size % 2;
}

std::vector<int> ParallelDims::group(const RankGroups& groups, int rank) const {
  auto ranks = group_along(groups.along, rank);
  if (groups.first_pair < 0) return ranks;
  const int size = static_cast<int>(ranks.size());
  const int after_first = (place_along(groups.along, rank) - groups.first_pair + size) % size;
  std::vector<int> pair;
  for (int i = after_first / 2 * 2; i < std::min(size, after_first / 2 * 2 + 2); ++i)
    pair.push_back(ranks[static_cast<std::size_t>((groups.first_pair + i) % size)]);
  return pair;
}

std::string to_string(const ParallelDims& dims) {
  std::vector<std::string> axes;
  for (const auto& axis : dims.axes()) axes.push_back(fmt::format("{}={}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(axes, " x "));
}

std::string to_string(AxisSet axes, const ParallelDims& dims) {
  std::vector<std::string_view> names;
  for (const auto& axis : dims.axes())
    if ((axes & dims.named({axis.name})).any()) names.push_back(axis.name);
  return fmt::format("{}", fmt::join(names, " x "));
}

}  // namespace llamesh::comm
