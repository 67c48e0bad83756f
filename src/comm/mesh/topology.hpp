#pragma once

#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// Placement of ranks on nodes. A node is a set of ranks that share memory; with `ranks_per_node`
/// set, every machine is split into logical nodes with that many ranks.
struct Topology {
  std::vector<int> node_of;          ///< by world rank; nodes are numbered by their lowest rank
  std::vector<int> local_rank_of;    ///< by world rank: local rank within its node
  std::vector<std::string> host_of;  ///< by world rank
  int nodes = 0;

  int ranks_on(int node) const;
  /// Returns the ranks per node if all nodes have equally many, else 0.
  int uniform_ranks_per_node() const;
};

/// Returns the number of nodes that hold these ranks. Pure.
int nodes_of(const std::vector<int>& ranks, const Topology& topology);

/// Asks MPI which ranks share memory. Collective. `ranks_per_node` 0: a machine is a node.
Topology discover_topology(const Communicator& world, int ranks_per_node);

/// Splits each machine's ranks, in rank order, into logical nodes. Throws a user error if
/// `ranks_per_node` does not divide a machine's ranks. Pure.
Topology make_topology(const std::vector<int>& machine_of, const std::vector<std::string>& host_of,
                       int ranks_per_node);

/// Returns the topology for a hypothetical launch (--ranks): `ranks` assigned to machines with
/// `per_machine` each, the last possibly with fewer; then as make_topology().
Topology planned_topology(int ranks, int per_machine, int ranks_per_node);

}  // namespace llamesh::comm
