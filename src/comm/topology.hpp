#pragma once

#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace llamesh::comm {

/// Which rank is on which node. A node is a set of ranks that share memory; with
/// `ranks_per_node` set, every machine is cut into logical nodes of that many ranks.
struct Topology {
  std::vector<int> node_of;          ///< by world rank; nodes numbered by their lowest rank
  std::vector<int> local_rank_of;    ///< by world rank: its rank within its node
  std::vector<std::string> host_of;  ///< by world rank
  int nodes = 0;

  int ranks_on(int node) const;
  /// All nodes hold this many ranks, or 0 when they differ.
  int uniform_ranks_per_node() const;
};

/// On how many nodes these ranks are. Pure.
int nodes_of(const std::vector<int>& ranks, const Topology& topology);

/// Asks MPI which ranks share memory. Collective. `ranks_per_node` 0: a machine is a node.
Topology discover_topology(const Communicator& world, int ranks_per_node);

/// The pure part: cuts the ranks of each machine, in rank order, into logical nodes.
/// Throws a user error when `ranks_per_node` does not divide a machine's ranks.
Topology make_topology(const std::vector<int>& machine_of, const std::vector<std::string>& host_of,
                       int ranks_per_node);

/// The topology of a hypothetical launch (--ranks): `ranks` assigned to machines of `per_machine`
/// each, the last of which may have fewer; then as make_topology().
Topology planned_topology(int ranks, int per_machine, int ranks_per_node);

}  // namespace llamesh::comm
