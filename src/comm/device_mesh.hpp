#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/collective_log.hpp"
#include "comm/collectives.hpp"
#include "comm/communicator.hpp"
#include "comm/nccl.hpp"
#include "comm/parallel_dims.hpp"
#include "comm/topology.hpp"

namespace llamesh::comm {

/// The groups of a mesh of ranks: along each axis one for collectives, and along several axes for
/// host values.
class DeviceMesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
    int rank = 0;                    ///< this rank's coordinate
    bool within_node = true;         ///< in every such group all ranks share one node
    double share_between_nodes = 0;  ///< of the bytes that all ranks send over it, by bytes_sent()
    std::optional<Communicator> group = {};  ///< for host values; none in a simulated mesh
    std::unique_ptr<Collectives> collectives = {};
  };

  /// Collective. The sizes of the axes must multiply to the size of the world, which is borrowed.
  DeviceMesh(const Communicator& world, const Topology& topology, ParallelDims dims);
  /// The mesh as `rank` of a launch that need not exist sees it, within a device::Simulation:
  /// its collectives are simulated, and it has no communicators. `log`, if any, gets what they are
  /// called for, and outlives the mesh. Not collective.
  DeviceMesh(const Topology& topology, ParallelDims dims, int rank, CollectiveLog* log = nullptr);

  const ParallelDims& dims() const { return dims_; }
  int rank() const { return rank_; }  ///< in the world
  std::vector<Axis>& axes() { return axes_; }
  Axis& axis(std::string_view name);
  /// Collectives over this rank's group along several axes: those of the axis where it is one, or
  /// the only one of more than one rank, else created at the first call, which is then collective.
  Axis& along(AxisSet axes);
  /// The same ranks for reductions. On GPUs these have a stream and a communicator of their own, so
  /// that they do not wait for gathers nor gathers for them; memory for them is allocated there. On
  /// CPUs, and where a rank is alone, it is along(). The first call is collective.
  Axis& reductions_along(AxisSet axes);
  /// The axes, and what along() and reductions_along() have created.
  std::vector<const Axis*> all() const;
  /// Whether none of the collectives of all() was given up.
  bool healthy() const;
  /// This rank's group along several axes: the world's, an axis', or one created at the first call,
  /// which is then collective.
  const Communicator& group(AxisSet along);

  /// From now on what is called along each axis is kept; check_contracts() compares it.
  void keep_contracts();
  /// See comm/contract.hpp; nothing where contracts are not kept. Collective.
  void check_contracts() const;

 private:
  void make_axes();
  Axis make_axis(const std::string& name, AxisSet along);
  std::unique_ptr<Collectives> make_collectives(const Axis& axis, AxisSet along) const;
  bool on_gpus() const;

  const Communicator* world_;     ///< null: simulated
  CollectiveLog* log_ = nullptr;  ///< of a simulated mesh, or null
  int rank_;
  Topology topology_;
  ParallelDims dims_;
  std::optional<Nccl> nccl_;  ///< on GPUs; the axes' communicators are split from it
  std::vector<Axis> axes_;
  // Along several axes, by AxisSet::to_ulong().
  std::map<unsigned long, Axis> combined_, reductions_;
  std::map<unsigned long, Communicator> groups_;
  bool keeps_contracts_ = false;
};

/// Node by node which rank has which coordinates (--print-mesh). Pure.
std::string describe(const ParallelDims& dims, const Topology& topology);

/// Whether each group along these axes has all its ranks on one node. Pure.
bool within_node(const ParallelDims& dims, AxisSet along, const Topology& topology);

/// The communication pattern between the ranks of an axis.
enum class Route : std::uint8_t {
  pairs,  ///< each rank sends as much to every other one: PairwiseExchange
  ring,   ///< each rank sends all to the next one, a node's ranks following each other: NCCL
};

/// Of the bytes that the ranks send in their groups along these axes, all ranks together, the share
/// that goes from one node to another: 0 to 1. Pure.
double share_between_nodes(const ParallelDims& dims, AxisSet along, const Topology& topology,
                           Route route);

}  // namespace llamesh::comm
