#include "sharding/placement.hpp"

#include "core/error.hpp"

namespace llamesh::sharding {

comm::AxisSet Placement::cut_axes() const {
  comm::AxisSet all;
  for (const auto& axes : cut) all |= axes;
  return all;
}

Placements whole_and_sharded(const model::ParameterTable& table, const comm::ParallelDims& dims) {
  Placements placements;
  for (const auto& parameter : table.parameters)
    placements.push_back(
        {std::vector<comm::AxisSet>(parameter.shape.size()), dims.named({"shard"})});
  return placements;
}

int parts(const Placement& placement, const comm::ParallelDims& dims) {
  int count = 1;
  for (const auto& axes : placement.cut) count *= dims.group_size(axes);
  return count;
}

int part_of(const Placement& placement, const comm::ParallelDims& dims, int rank) {
  int number = 0;
  for (const auto& axes : placement.cut)
    number = number * dims.group_size(axes) + dims.rank_in_group(axes, rank);
  return number;
}

Box part(const Placement& placement, const comm::ParallelDims& dims,
         const model::Parameter& parameter, int number) {
  const auto& shape = parameter.shape;
  expects(placement.cut.size() == shape.size(), "{}: a placement of {} dims for {}", parameter.name,
          placement.cut.size(), shape.size());
  Box box = Box::whole(shape);
  for (std::size_t d = shape.size(); d-- > 0;) {
    const int count = dims.group_size(placement.cut[d]);
    validate(shape[d] % count == 0, "{}: dim {} of {} elements cannot be cut into {} equal parts",
             parameter.name, d, shape[d], count);
    box.shape[d] = shape[d] / count;
    box.begin[d] = number % count * box.shape[d];
    number /= count;
  }
  return box;
}

}  // namespace llamesh::sharding
