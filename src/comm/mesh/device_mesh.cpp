#include "comm/mesh/device_mesh.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "comm/diagnosis/collective_fingerprint.hpp"
#include "comm/mpi/backoff.hpp"
#include "comm/transports/mpi_collectives.hpp"
#include "comm/transports/node_collectives.hpp"
#include "comm/transports/simulated_collectives.hpp"
#include "device/device.hpp"
#include "device/simulated/simulation.hpp"

namespace llamesh::comm {
namespace {

/// Returns the groups, each as a list of ranks.
std::vector<std::vector<int>> list_of(const ParallelDims& dims, const RankGroups& groups) {
  std::vector<std::vector<int>> list;
  for (int rank = 0; rank < dims.ranks(); ++rank)
    if (dims.rank_in_group(groups, rank) == 0) list.push_back(dims.group(groups, rank));
  return list;
}

/// Counts a group's ranks on each node.
std::map<int, std::int64_t> by_node(const std::vector<int>& group, const Topology& topology) {
  std::map<int, std::int64_t> ranks;
  for (const int rank : group) ++ranks[topology.node_of[static_cast<std::size_t>(rank)]];
  return ranks;
}

/// Counts the ranks of a group whose partner, `step` away, is on another node.
std::ptrdiff_t crossing_of_step(const std::vector<int>& group, std::ptrdiff_t step,
                                const Topology& topology) {
  const auto node = [&](std::ptrdiff_t place) {
    return topology.node_of[static_cast<std::size_t>(group[static_cast<std::size_t>(place)])];
  };
  std::ptrdiff_t crossing = 0;
  for (std::ptrdiff_t place = 0; place < std::ssize(group); ++place)
    crossing += node(place) != node(place ^ step) ? 1 : 0;
  return crossing;
}

}  // namespace

double share_between_nodes(const ParallelDims& dims, const RankGroups& groups,
                           const Topology& topology, Route route) {
  double crossing = 0;  // sends between nodes, in one collective over all ranks
  double sends = 0;
  for (const auto& group : list_of(dims, groups)) {
    const auto size = std::ssize(group);
    const auto nodes = by_node(group, topology);
    const auto count = static_cast<double>(size);
    if (route == Route::pairs) {
      sends += count * (count - 1);
      for (const auto& [node, ranks] : nodes)
        crossing += static_cast<double>(ranks * (size - ranks));
    } else if (route == Route::ring) {
      sends += count;
      if (nodes.size() > 1) crossing += static_cast<double>(nodes.size());
    } else {
      for (std::ptrdiff_t step = 1; step < size; step *= 2) {
        sends += count / static_cast<double>(step);
        crossing += static_cast<double>(crossing_of_step(group, step, topology)) /
                    static_cast<double>(step);
      }
    }
  }
  return sends == 0 ? 0 : crossing / sends;
}

bool within_node(const ParallelDims& dims, const RankGroups& groups, const Topology& topology) {
  return std::ranges::all_of(list_of(dims, groups), [&](const std::vector<int>& group) {
    return by_node(group, topology).size() == 1;
  });
}

DeviceMesh::DeviceMesh(const Communicator& world, const Topology& topology, ParallelDims dims,
                       SumOrder order)
    : world_(&world),
      order_(order),
      rank_(world.rank()),
      topology_(topology),
      dims_(std::move(dims)) {
  validate(dims_.ranks() == world.size(),
           "the mesh {} needs {} ranks but {} were started; change the sizes of the mesh or the "
           "number of ranks",
           to_string(dims_), dims_.ranks(), world.size());
  expects(topology.node_of.size() == static_cast<std::size_t>(world.size()),
          "a topology of {} ranks for a world of {}", topology.node_of.size(), world.size());
  if (device::kind() == device::Kind::cuda) nccl_.emplace(world, order_);
  make_axes();
}

DeviceMesh::DeviceMesh(const Topology& topology, ParallelDims dims, int rank, CollectiveLog* log,
                       SharedTime* time, SumOrder order)
    : world_(nullptr),
      log_(log),
      time_(time),
      order_(order),
      rank_(rank),
      topology_(topology),
      dims_(std::move(dims)) {
  expects(
      rank < dims_.ranks() && topology.node_of.size() == static_cast<std::size_t>(dims_.ranks()),
      "rank {} of {}, {} of them placed", rank, dims_.ranks(), topology.node_of.size());
  make_axes();
}

void DeviceMesh::make_axes() {
  for (const auto& axis : dims_.axes())
    axes_.push_back(make_axis(axis.name, dims_.named({axis.name})));
}

/// Creates an axis, with its communicator and collectives. Collective.
DeviceMesh::Axis DeviceMesh::make_axis(const std::string& name, const RankGroups& groups) {
  const auto members = dims_.group(groups, rank_);
  Axis axis{.name = name,
            .size = static_cast<int>(members.size()),
            .rank = dims_.rank_in_group(groups, rank_),
            .within_node = within_node(dims_, groups, topology_)};
  if (world_) axis.group = world_->split(members.front(), axis.rank, name);
  axis.collectives = make_collectives(axis, groups);
  if (keeps_fingerprints_) axis.collectives->keep_fingerprint();
  axis.share_between_nodes =
      share_between_nodes(dims_, groups, topology_, on_gpus() ? Route::ring : Route::pairs);
  return axis;
}

bool DeviceMesh::on_gpus() const {
  return world_ ? nccl_.has_value()
                : device::Simulation::current().hardware().kind == device::Kind::cuda;
}

/// Creates an axis' collectives on the fitting transport. Collective.
std::unique_ptr<Collectives> DeviceMesh::make_collectives(const Axis& axis,
                                                          const RankGroups& groups) const {
  const auto members = dims_.group(groups, rank_);
  if (!world_) {
    SimulatedCollectives::Log log;
    if (log_) {
      log_->groups.push_back({axis.name, groups, {}});
      log = [all = log_, group = log_->groups.size() - 1](const CollectiveCall& call) {
        all->add(group, call);
      };
    }
    return std::make_unique<SimulatedCollectives>(axis.rank, axis.size,
                                                  nodes_of(members, topology_), axis.within_node,
                                                  std::move(log), order_);
  }
  if (nccl_) return nccl_->axis(axis.name, *axis.group, members.front());
  if (axis.within_node) return std::make_unique<NodeCollectives>(*axis.group);
  return std::make_unique<MpiCollectives>(*axis.group);
}

DeviceMesh::Axis& DeviceMesh::axis(std::string_view name) {
  const auto found = std::ranges::find(axes_, name, &Axis::name);
  expects(found != axes_.end(), "the mesh {} has no axis {}", to_string(dims_), name);
  return *found;
}

DeviceMesh::Axis& DeviceMesh::along(AxisSet axes) {
  for (auto& axis : axes_)
    if (axes == dims_.named({axis.name})) return axis;
  axes = dims_.without_ones(axes);
  for (auto& axis : axes_)
    if (axes == dims_.without_ones(dims_.named({axis.name}))) return axis;
  const auto found = combined_.find(axes.to_ulong());
  if (found != combined_.end()) return found->second;
  return combined_.emplace(axes.to_ulong(), make_axis(to_string(axes, dims_), axes)).first->second;
}

DeviceMesh::Axis& DeviceMesh::reductions_along(AxisSet axes) {
  auto& whole = along(axes);
  if (whole.size == 1 || !on_gpus()) return whole;
  axes = dims_.without_ones(axes);
  const auto found = reductions_.find(axes.to_ulong());
  if (found != reductions_.end()) return found->second;
  auto& made = reductions_.emplace(axes.to_ulong(), make_axis(whole.name, axes)).first->second;
  if (order_ == SumOrder::tree)
    made.share_between_nodes = share_between_nodes(dims_, axes, topology_, Route::tree);
  if (auto* simulated = dynamic_cast<SimulatedCollectives*>(made.collectives.get()))
    simulated->share_links_of(dynamic_cast<const SimulatedCollectives&>(*whole.collectives));
  return made;
}

AxisSet DeviceMesh::innermost_within_node(AxisSet axes) const {
  AxisSet inner;
  for (auto factor = axes.size(); factor-- > 0;) {
    if (!axes[factor]) continue;
    inner.set(factor);
    if (!within_node(dims_, inner, topology_)) return inner.reset(factor);
  }
  return inner;
}

DeviceMesh::Axis& DeviceMesh::pairs_along(AxisSet axis, int first, int channel) {
  const std::tuple key(axis.to_ulong(), first, channel);
  const auto found = pairs_.find(key);
  if (found != pairs_.end()) return found->second;
  const auto groups = RankGroups::pairs(axis, first);
  auto& made = pairs_.emplace(key, make_axis(to_string(axis, dims_), groups)).first->second;
  if (time_)
    dynamic_cast<SimulatedCollectives&>(*made.collectives)
        .share_time(*time_, {dims_.group(groups, rank_).front(), first, channel});
  return made;
}

std::vector<const DeviceMesh::Axis*> DeviceMesh::all() const {
  std::vector<const Axis*> all;
  for (const auto& axis : axes_) all.push_back(&axis);
  for (const auto* more : {&combined_, &reductions_})
    for (const auto& [axes, axis] : *more) all.push_back(&axis);
  for (const auto& [key, axis] : pairs_) all.push_back(&axis);
  return all;
}

const Communicator& DeviceMesh::group(AxisSet along) {
  expects(world_ != nullptr, "a simulated mesh has no communicators");
  const int size = dims_.group_size(along);
  if (size == world_->size()) return *world_;
  for (const auto& axis : axes_)
    if (axis.size == size && along == dims_.named({axis.name})) return *axis.group;
  auto found = groups_.find(along.to_ulong());
  if (found == groups_.end()) {
    const int first = dims_.group(along, rank_).front();
    const int rank = dims_.rank_in_group(along, rank_);
    found = groups_.emplace(along.to_ulong(), world_->split(first, rank, to_string(along, dims_)))
                .first;
  }
  return found->second;
}

void DeviceMesh::keep_fingerprints() {
  keeps_fingerprints_ = true;
  for (const auto* axis : all()) axis->collectives->keep_fingerprint();
}

void DeviceMesh::drain() const noexcept {
  // A simulation has no other ranks, but the process may, and it must still tell them of the error.
  const bool simulated = device::kind() == device::Kind::simulated;
  if (std::uncaught_exceptions() > 0 && !simulated) stop_waiting();
  for (const auto* axis : all()) {
    try {
      axis->collectives->stream().record().wait();
    } catch (...) {  // whoever waited for the result reports the error
    }
  }
}

bool DeviceMesh::healthy() const {
  return std::ranges::all_of(all(), [](const Axis* axis) { return axis->collectives->healthy(); });
}

void DeviceMesh::check_fingerprints() const {
  if (!keeps_fingerprints_) return;
  std::vector<const Members*> groups;
  for (const auto* axis : all()) groups.push_back(axis->collectives->members().get());
  comm::check_fingerprints(*world_, groups);
}

std::string describe(const ParallelDims& dims, const Topology& topology) {
  const auto ranks = topology.node_of.size();
  std::string text = fmt::format("mesh {}: {} {} on {} {}\n", to_string(dims), ranks,
                                 ranks == 1 ? "rank" : "ranks", topology.nodes,
                                 topology.nodes == 1 ? "node" : "nodes");
  for (const auto& axis : dims.axes())
    text += fmt::format("  axis {}: {}\n", axis.name,
                        within_node(dims, dims.named({axis.name}), topology)
                            ? "within nodes, through shared memory"
                            : "between nodes, by MPI point-to-point");
  std::vector<std::vector<std::size_t>> ranks_of(static_cast<std::size_t>(topology.nodes));
  for (std::size_t rank = 0; rank < ranks; ++rank)
    ranks_of[static_cast<std::size_t>(topology.node_of[rank])].push_back(rank);
  for (std::size_t node = 0; node < ranks_of.size(); ++node) {
    text += fmt::format("  node {} ({})\n", node, topology.host_of[ranks_of[node].front()]);
    for (const auto rank : ranks_of[node]) {
      const auto at = dims.coordinates(static_cast<int>(rank));
      text += fmt::format("    rank {:<4}", rank);
      for (std::size_t i = 0; i < at.size(); ++i)
        text += fmt::format(" {} {}", dims.axes()[i].name, at[i]);
      text += '\n';
    }
  }
  return text;
}

}  // namespace llamesh::comm
