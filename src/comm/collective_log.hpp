#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/parallel_dims.hpp"
#include "core/dtype.hpp"

namespace llamesh::comm {

/// A call that every rank in a group must make identically.
struct CollectiveCall {
  std::string_view kind;     ///< "all_gather", "allocate_gathered", ...
  std::string_view subject;  ///< the call's unit
  DType dtype;               ///< of the data sent
  std::int64_t numel;        ///< elements in the call's full tensor; bytes for an allocation
  int root = 0;              ///< for a broadcast

  bool operator==(const CollectiveCall&) const = default;
};

/// Formats a call: "all_gather of 4096 bf16 (model.layers.0)".
std::string describe(const CollectiveCall& call);

/// One rank's calls in its group along some axes, in order.
struct GroupCalls {
  std::string name;  ///< the axes' name
  AxisSet along;
  std::vector<CollectiveCall> calls;
};

/// Every call that one rank in a simulated mesh makes. Subjects are not copied: they must outlive
/// the log.
struct CollectiveLog {
  std::vector<GroupCalls> groups;  ///< in the order in which the mesh creates them
  std::vector<std::size_t> order;  ///< group index for each call, over all groups

  void add(std::size_t group, const CollectiveCall& call) {
    groups[group].calls.push_back(call);
    order.push_back(group);
  }
};

}  // namespace llamesh::comm
