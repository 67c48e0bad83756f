#include "comm/device_mesh.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "comm/mpi_collectives.hpp"
#include "comm/node_collectives.hpp"
#include "device/device.hpp"

namespace llamesh::comm {
namespace {

std::int64_t ranks_of(const MeshShape& shape) {
  std::int64_t ranks = 1;
  for (const auto& axis : shape) ranks *= axis.size;
  return ranks;
}

/// How many ranks apart neighbours along `axis` are.
int stride_of(const MeshShape& shape, std::size_t axis) {
  int stride = 1;
  for (std::size_t inner = axis + 1; inner < shape.size(); ++inner) stride *= shape[inner].size;
  return stride;
}

void validate_shape(const MeshShape& shape, std::int64_t ranks) {
  for (std::size_t i = 0; i < shape.size(); ++i) {
    validate(shape[i].size >= 1, "mesh axis {} has size {}; give 1 or more", shape[i].name,
             shape[i].size);
    for (std::size_t j = 0; j < i; ++j)
      validate(shape[i].name != shape[j].name, "mesh axis {} is named twice; rename one",
               shape[i].name);
  }
  validate(ranks_of(shape) == ranks,
           "the mesh {} needs {} ranks but {} were started; change the sizes of the mesh or the "
           "number of ranks",
           to_string(shape), ranks_of(shape), ranks);
}

}  // namespace

std::string to_string(const MeshShape& shape) {
  std::vector<std::string> axes;
  for (const auto& axis : shape) axes.push_back(fmt::format("{}={}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(axes, " x "));
}

std::vector<int> coordinates(const MeshShape& shape, int rank) {
  std::vector<int> result(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    result[i] = rank % shape[i].size;
    rank /= shape[i].size;
  }
  return result;
}

double share_between_nodes(const MeshShape& shape, std::size_t axis, const Topology& topology,
                           Route route) {
  const int size = shape[axis].size;
  const int stride = stride_of(shape, axis);
  std::int64_t crossing = 0;  // of the sends of one collective in which all ranks take part
  std::int64_t sends = 0;
  for (int first = 0; first < static_cast<int>(topology.node_of.size()); ++first) {
    if (coordinates(shape, first)[axis] != 0) continue;
    std::map<int, std::int64_t> ranks_of_node;
    for (int i = 0; i < size; ++i)
      ++ranks_of_node[topology.node_of[static_cast<std::size_t>(first + i * stride)]];
    if (route == Route::pairs) {
      sends += std::int64_t{size} * (size - 1);
      for (const auto& [node, ranks] : ranks_of_node) crossing += ranks * (size - ranks);
    } else {
      sends += size;
      if (ranks_of_node.size() > 1) crossing += std::ssize(ranks_of_node);
    }
  }
  return sends == 0 ? 0 : static_cast<double>(crossing) / static_cast<double>(sends);
}

bool axis_within_node(const MeshShape& shape, std::size_t axis, const Topology& topology) {
  const int stride = stride_of(shape, axis);
  for (std::size_t rank = 0; rank < topology.node_of.size(); ++rank) {
    // The first rank of this one's group: the same coordinates but 0 along the axis.
    const int along = coordinates(shape, static_cast<int>(rank))[axis];
    const std::size_t first = rank - static_cast<std::size_t>(along * stride);
    if (topology.node_of[rank] != topology.node_of[first]) return false;
  }
  return true;
}

DeviceMesh::DeviceMesh(const Communicator& world, const Topology& topology, MeshShape shape)
    : shape_(std::move(shape)) {
  validate_shape(shape_, world.size());
  expects(topology.node_of.size() == static_cast<std::size_t>(world.size()),
          "a topology of {} ranks for a world of {}", topology.node_of.size(), world.size());
  if (device::kind() == device::Kind::cuda) nccl_.emplace(world);
  const auto mine = coordinates(shape_, world.rank());
  for (std::size_t i = 0; i < shape_.size(); ++i) {
    const int first = world.rank() - mine[i] * stride_of(shape_, i);
    const bool within = axis_within_node(shape_, i, topology);
    auto group = world.split(first, mine[i]);
    std::unique_ptr<Collectives> collectives;
    if (nccl_)
      collectives = nccl_->axis(shape_[i].name, group, first);
    else if (within)
      collectives = std::make_unique<NodeCollectives>(group);
    else
      collectives = std::make_unique<MpiCollectives>(group);
    const double between =
        share_between_nodes(shape_, i, topology, nccl_ ? Route::ring : Route::pairs);
    axes_.push_back({shape_[i].name, shape_[i].size, mine[i], within, between, std::move(group),
                     std::move(collectives)});
  }
}

const DeviceMesh::Axis& DeviceMesh::axis(std::string_view name) const {
  const auto found = std::ranges::find(axes_, name, &Axis::name);
  expects(found != axes_.end(), "the mesh {} has no axis {}", to_string(shape_), name);
  return *found;
}

DeviceMesh::Axis& DeviceMesh::axis(std::string_view name) {
  return const_cast<Axis&>(std::as_const(*this).axis(name));
}

std::string describe(const MeshShape& shape, const Topology& topology) {
  const auto ranks = topology.node_of.size();
  std::string text = fmt::format("mesh {}: {} {} on {} {}\n", to_string(shape), ranks,
                                 ranks == 1 ? "rank" : "ranks", topology.nodes,
                                 topology.nodes == 1 ? "node" : "nodes");
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += fmt::format("  axis {}: {}\n", shape[i].name,
                        axis_within_node(shape, i, topology) ? "within nodes, through shared memory"
                                                             : "between nodes, by messages");
  std::vector<std::vector<std::size_t>> ranks_of(static_cast<std::size_t>(topology.nodes));
  for (std::size_t rank = 0; rank < ranks; ++rank)
    ranks_of[static_cast<std::size_t>(topology.node_of[rank])].push_back(rank);
  for (std::size_t node = 0; node < ranks_of.size(); ++node) {
    text += fmt::format("  node {} ({})\n", node, topology.host_of[ranks_of[node].front()]);
    for (const auto rank : ranks_of[node]) {
      const auto at = coordinates(shape, static_cast<int>(rank));
      text += fmt::format("    rank {:<4}", rank);
      for (std::size_t i = 0; i < shape.size(); ++i)
        text += fmt::format(" {} {}", shape[i].name, at[i]);
      text += '\n';
    }
  }
  return text;
}

}  // namespace llamesh::comm
