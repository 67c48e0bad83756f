#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/parallel_dims.hpp"
#include "core/dtype.hpp"

namespace llamesh::comm {

/// A call that all ranks of a group have to make alike.
struct CollectiveCall {
  std::string_view kind;     ///< "all_gather", "allocate_gathered", ...
  std::string_view subject;  ///< what it is for: a unit
  DType dtype;               ///< of what is sent
  std::int64_t numel;        ///< of what the call is about; of an allocation bytes
  int root = 0;              ///< of a broadcast

  bool operator==(const CollectiveCall&) const = default;
};

/// "all_gather of 4096 bf16 (model.layers.0)".
std::string describe(const CollectiveCall& call);

/// The calls of one rank in its group along some axes, in their order.
struct GroupCalls {
  std::string name;  ///< of the axes
  AxisSet along;
  std::vector<CollectiveCall> calls;
};

/// All that one rank of a simulated mesh calls. The subjects are not copied: they must outlive it.
struct CollectiveLog {
  std::vector<GroupCalls> groups;  ///< in the order in which the mesh makes them
  std::vector<std::size_t> order;  ///< of the calls of all groups together: which group is next

  void add(std::size_t group, const CollectiveCall& call) {
    groups[group].calls.push_back(call);
    order.push_back(group);
  }
};

}  // namespace llamesh::comm
