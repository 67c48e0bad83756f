#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/calls/collective_call.hpp"
#include "comm/mesh/parallel_dims.hpp"

namespace llamesh::comm {

/// One rank's calls in its group, in order.
struct GroupCalls {
  std::string name;  ///< the axes' name
  RankGroups along;
  std::vector<CollectiveCall> calls;
};

/// Every call that one rank in a simulated mesh makes.
struct CollectiveLog {
  std::vector<GroupCalls> groups;  ///< in the order in which the mesh creates them
  std::vector<std::size_t> order;  ///< group index for each call, over all groups

  void add(std::size_t group, const CollectiveCall& call) {
    groups[group].calls.push_back(call);
    order.push_back(group);
  }
};

}  // namespace llamesh::comm
