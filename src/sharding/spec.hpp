#pragma once

#include <string>
#include <vector>

namespace llamesh::sharding {

/// A line of a partition spec: along which axes of the mesh a weight, or the output of a module,
/// is divided.
struct SpecEntry {
  std::string
      name;  ///< Hugging Face's, with `*` for a number; of an output also with [0] behind it
  std::vector<std::vector<std::string>> dims;  ///< by dim: axes, major to minor; none: whole
  std::string where;  ///< for messages: "inputs/specs/fsdp.yaml:12" or "command line"
};

/// A partition spec (docs/sharding-specs.md): what `sharding.spec` of the inputs says. A later
/// entry of the same name does not replace an earlier one: config/ sees to it that there is none.
struct Spec {
  std::vector<SpecEntry> entries;
};

/// Dims as they are written: "[[shard, replicate], null]".
std::string to_string(const std::vector<std::vector<std::string>>& dims);

}  // namespace llamesh::sharding
