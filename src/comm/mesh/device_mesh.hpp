#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "comm/mesh/collective_log.hpp"
#include "comm/mesh/parallel_dims.hpp"
#include "comm/mesh/topology.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/transports/collectives.hpp"
#include "comm/transports/nccl.hpp"
#include "comm/transports/shared_time.hpp"

namespace llamesh::comm {

/// Groups in a mesh of ranks: along each axis one for collectives, and along several axes for host
/// values.
class DeviceMesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
    int rank = 0;                            ///< this rank's coordinate
    bool within_node = true;                 ///< every group along it lies on a single node
    double share_between_nodes = 0;          ///< as a fraction of all bytes_sent() over it
    std::optional<Communicator> group = {};  ///< for host values; none in a simulated mesh
    std::unique_ptr<Collectives> collectives = {};
  };

  /// Collective. The axis sizes must multiply to the size of the world, which is borrowed.
  DeviceMesh(const Communicator& world, const Topology& topology, ParallelDims dims,
             SumOrder order = SumOrder::fastest);
  /// Creates the mesh as seen by `rank` in a hypothetical launch, within a device::Simulation: its
  /// collectives are simulated, and it has no communicators. `log`, if any, receives their calls.
  /// With `time`, pairs of ranks wait for one another, which are simulated side by side. Both
  /// outlive the mesh. Not collective.
  DeviceMesh(const Topology& topology, ParallelDims dims, int rank, CollectiveLog* log = nullptr,
             SharedTime* time = nullptr, SumOrder order = SumOrder::fastest);

  const ParallelDims& dims() const { return dims_; }
  int rank() const { return rank_; }  ///< world rank
  std::vector<Axis>& axes() { return axes_; }
  Axis& axis(std::string_view name);
  /// Returns collectives over this rank's group along several axes: those of the axis if there is
  /// only one, or only one with more than one rank; otherwise created at the first call, which is
  /// then collective.
  Axis& along(AxisSet axes);
  /// Returns the same ranks for reductions. On GPUs these have their own stream and communicator,
  /// so that gathers and reductions do not wait for each other; allocate memory for reductions
  /// there. On CPUs, or if a rank is alone, this is along(). The first call is collective.
  Axis& reductions_along(AxisSet axes);
  /// Returns the innermost of these axes' factors, as many as have each group on a single node.
  AxisSet innermost_within_node(AxisSet axes) const;
  /// Returns collectives over RankGroups::pairs(), each `channel` with its own stream and
  /// communicator. Collective: every rank makes the same calls in the same order.
  Axis& pairs_along(AxisSet axis, int first, int channel);
  /// Returns the axes, and everything that along(), reductions_along() and pairs_along() have
  /// created.
  std::vector<const Axis*> all() const;
  /// Waits until all collectives in all() are done, so that their memory may go. While an error
  /// unwinds, other ranks may never arrive: gives up waiting for them first.
  void drain() const noexcept;
  /// Returns false if any collective in all() was aborted.
  bool healthy() const;
  /// Returns this rank's group along several axes: the world, an axis' group, or one created at the
  /// first call, which is then collective.
  const Communicator& group(AxisSet along);

  /// Starts recording calls along each axis; check_fingerprints() compares them.
  void keep_fingerprints();
  /// Runs comm/diagnosis/collective_fingerprint.hpp's check; does nothing unless calls are
  /// recorded. Collective.
  void check_fingerprints() const;

 private:
  void make_axes();
  Axis make_axis(const std::string& name, const RankGroups& groups);
  std::unique_ptr<Collectives> make_collectives(const Axis& axis, const RankGroups& groups) const;
  bool on_gpus() const;

  const Communicator* world_;     ///< null: simulated
  CollectiveLog* log_ = nullptr;  ///< for a simulated mesh, or null
  SharedTime* time_ = nullptr;    ///< the same
  SumOrder order_;
  int rank_;
  Topology topology_;
  ParallelDims dims_;
  std::optional<Nccl> nccl_;  ///< on GPUs; the axes' communicators are split from it
  std::vector<Axis> axes_;
  // Groups along several axes, by AxisSet::to_ulong().
  std::map<unsigned long, Axis> combined_, reductions_;
  std::map<std::tuple<unsigned long, int, int>, Axis> pairs_;
  std::map<unsigned long, Communicator> groups_;
  bool keeps_fingerprints_ = false;
};

/// Lists each node's ranks with their coordinates (--print-mesh). Pure.
std::string describe(const ParallelDims& dims, const Topology& topology);

/// Returns true if each of these groups has all its ranks on one node. Pure.
bool within_node(const ParallelDims& dims, const RankGroups& groups, const Topology& topology);

/// Communication pattern between the ranks on an axis.
enum class Route : std::uint8_t {
  pairs,  ///< each rank sends equally to every other one: PairwiseExchange
  ring,   ///< each rank sends only to the next one, node by node: NCCL
  tree,   ///< each rank halves its data with ever more distant ones: SumOrder::tree
};

/// Returns the fraction of bytes, over all of these groups, that goes from one node to another: 0
/// to 1. Pure.
double share_between_nodes(const ParallelDims& dims, const RankGroups& groups,
                           const Topology& topology, Route route);

}  // namespace llamesh::comm
