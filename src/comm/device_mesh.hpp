#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/communicator.hpp"
#include "comm/nccl.hpp"
#include "comm/topology.hpp"

namespace llamesh::comm {

/// One named axis of a mesh; axes are listed outermost first.
struct MeshAxis {
  std::string name;
  int size = 1;
};
using MeshShape = std::vector<MeshAxis>;

/// "replicate=2 x shard=4".
std::string to_string(const MeshShape& shape);

/// The ranks laid out as a grid with named axes, row-major: the innermost axis runs over
/// neighbouring ranks. For each axis it holds the group of ranks that differ in that axis only.
class DeviceMesh {
 public:
  struct Axis {
    std::string name;
    int size;
    int rank;                    ///< this rank's coordinate
    bool within_node;            ///< in every such group all ranks share one node
    double share_between_nodes;  ///< of the bytes that all ranks send over it, by bytes_sent()
    Communicator group;          ///< for small host values and collective I/O
    std::unique_ptr<Collectives> collectives;
  };

  /// Collective. The sizes of `shape` must multiply to the size of the world.
  DeviceMesh(const Communicator& world, const Topology& topology, MeshShape shape);

  const MeshShape& shape() const { return shape_; }
  Axis& axis(std::string_view name);
  const Axis& axis(std::string_view name) const;

 private:
  MeshShape shape_;
  std::optional<Nccl> nccl_;  ///< on GPUs; the axes' communicators are cut out of it
  std::vector<Axis> axes_;
};

/// Coordinates of `rank` in `shape`, outermost first. Pure.
std::vector<int> coordinates(const MeshShape& shape, int rank);

/// The group of ranks along each axis, as it stands: node by node which rank has which coordinates
/// (--print-mesh).
std::string describe(const MeshShape& shape, const Topology& topology);

/// Whether all ranks that differ only in `axis` stand on one node, for each such group. Pure.
bool axis_within_node(const MeshShape& shape, std::size_t axis, const Topology& topology);

/// The ways that bytes take between the ranks of an axis.
enum class Route : std::uint8_t {
  pairs,  ///< each rank sends as much to every other one: PairwiseExchange
  ring,   ///< each rank sends all to the next one, a node's ranks following each other: NCCL
};

/// Of the bytes that the ranks send over `axis`, all ranks together, the share that goes from one
/// node to another: 0 to 1. Pure.
double share_between_nodes(const MeshShape& shape, std::size_t axis, const Topology& topology,
                           Route route);

}  // namespace llamesh::comm
