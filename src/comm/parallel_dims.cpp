#include "comm/parallel_dims.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.hpp"

namespace llamesh::comm {

ParallelDims::ParallelDims(std::vector<MeshAxis> axes)
    : axes_(std::move(axes)), strides_(axes_.size()) {
  validate(axes_.size() <= AxisSet().size(), "a mesh of {} axes; {} at most", axes_.size(),
           AxisSet().size());
  std::int64_t ranks = 1;
  for (std::size_t i = axes_.size(); i-- > 0;) {
    const auto& [name, size] = axes_[i];
    validate(size >= 1, "mesh axis {} has size {}; give 1 or more", name, size);
    validate(std::ranges::count(axes_, name, &MeshAxis::name) == 1,
             "mesh axis {} is named twice; rename one", name);
    strides_[i] = static_cast<int>(ranks);
    ranks *= size;
    validate(ranks <= std::numeric_limits<int>::max(), "the mesh {} has more ranks than MPI can",
             to_string(*this));
  }
}

AxisSet ParallelDims::all() const {
  AxisSet set;
  for (std::size_t i = 0; i < axes_.size(); ++i) set.set(i);
  return set;
}

AxisSet ParallelDims::named(std::initializer_list<std::string_view> names) const {
  AxisSet set;
  for (std::size_t i = 0; i < axes_.size(); ++i)
    set.set(i, std::ranges::find(names, axes_[i].name) != names.end());
  return set;
}

std::vector<int> ParallelDims::coordinates(int rank) const {
  std::vector<int> result;
  for (std::size_t i = 0; i < axes_.size(); ++i)
    result.push_back(rank / strides_[i] % axes_[i].size);
  return result;
}

int ParallelDims::group_size(AxisSet along) const {
  int size = 1;
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (along[i]) size *= axes_[i].size;
  return size;
}

int ParallelDims::rank_in_group(AxisSet along, int rank) const {
  const auto at = coordinates(rank);
  int place = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (along[i]) place = place * axes_[i].size + at[i];
  return place;
}

std::vector<int> ParallelDims::group(AxisSet along, int rank) const {
  const auto at = coordinates(rank);
  std::vector<int> ranks{rank};
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (!along[i]) continue;
    std::vector<int> longer;
    for (const int first : ranks)
      for (int c = 0; c < axes_[i].size; ++c) longer.push_back(first + (c - at[i]) * strides_[i]);
    ranks = std::move(longer);
  }
  return ranks;
}

std::string to_string(const ParallelDims& dims) {
  std::vector<std::string> axes;
  for (const auto& axis : dims.axes()) axes.push_back(fmt::format("{}={}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(axes, " x "));
}

std::string to_string(AxisSet axes, const ParallelDims& dims) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < dims.axes().size(); ++i)
    if (axes[i]) names.push_back(dims.axes()[i].name);
  return fmt::format("{}", fmt::join(names, " x "));
}

}  // namespace llamesh::comm
