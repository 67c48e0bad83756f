#include "comm/mesh/topology.hpp"

#include <algorithm>
#include <map>

#include "core/error.hpp"
#include "core/process.hpp"

namespace llamesh::comm {

int Topology::ranks_on(int node) const {
  return static_cast<int>(std::ranges::count(node_of, node));
}

int Topology::uniform_ranks_per_node() const {
  std::vector<int> ranks(static_cast<std::size_t>(nodes));
  for (const int node : node_of) ++ranks[static_cast<std::size_t>(node)];
  const bool uniform = std::ranges::adjacent_find(ranks, std::not_equal_to<>{}) == ranks.end();
  return uniform && !ranks.empty() ? ranks.front() : 0;
}

int nodes_of(const std::vector<int>& ranks, const Topology& topology) {
  std::vector<int> nodes;
  for (const int rank : ranks) nodes.push_back(topology.node_of[static_cast<std::size_t>(rank)]);
  std::ranges::sort(nodes);
  return static_cast<int>(std::ranges::unique(nodes).begin() - nodes.begin());
}

Topology discover_topology(const Communicator& world, int ranks_per_node) {
  const auto machine = world.split_shared_memory();
  // A machine is named by its lowest world rank.
  const auto name = machine.min(world.rank());
  const auto names = world.all_gather(name);
  return make_topology({names.begin(), names.end()}, world.all_gather(this_process().host),
                       ranks_per_node);
}

Topology make_topology(const std::vector<int>& machine_of, const std::vector<std::string>& host_of,
                       int ranks_per_node) {
  expects(machine_of.size() == host_of.size(), "{} machines but {} hosts", machine_of.size(),
          host_of.size());
  validate(ranks_per_node >= 0, "mesh.ranks_per_node is {}; give 1 or more, or auto",
           ranks_per_node);
  std::map<int, int> ranks_of_machine;
  for (const int machine : machine_of) ++ranks_of_machine[machine];

  Topology topology;
  topology.host_of = host_of;
  std::map<int, int> seen_of_machine;
  std::map<std::pair<int, int>, int> node_of_part;  // (machine, part) -> node
  for (std::size_t r = 0; r < machine_of.size(); ++r) {
    const int machine = machine_of[r];
    const int on_machine = ranks_of_machine[machine];
    const int per_node = ranks_per_node == 0 ? on_machine : ranks_per_node;
    validate(
        on_machine % per_node == 0,
        "{} has {} ranks, which cannot be cut into nodes of {}; let mesh.ranks_per_node divide "
        "the ranks of every machine",
        host_of[r], on_machine, per_node);
    const int place = seen_of_machine[machine]++;
    const auto [node, is_new] =
        node_of_part.try_emplace({machine, place / per_node}, topology.nodes);
    if (is_new) ++topology.nodes;
    topology.node_of.push_back(node->second);
    topology.local_rank_of.push_back(place % per_node);
  }
  return topology;
}

Topology planned_topology(int ranks, int per_machine, int ranks_per_node) {
  expects(ranks >= 1 && per_machine >= 1, "{} ranks, {} of each machine", ranks, per_machine);
  std::vector<int> machine_of;
  std::vector<std::string> host_of;
  for (int rank = 0; rank < ranks; ++rank) {
    machine_of.push_back(rank / per_machine);
    host_of.push_back(fmt::format("machine {}", rank / per_machine));
  }
  return make_topology(machine_of, host_of, ranks_per_node);
}

}  // namespace llamesh::comm
