#pragma once

#include <string>
#include <vector>

namespace llamesh::sharding {

/// One line in a partition spec: the mesh axes along which a weight, or a module's output, is
/// divided.
struct SpecEntry {
  std::string name;  ///< Hugging Face's, with `*` for a number; an output may also end in [0]
  std::vector<std::vector<std::string>> dims;  ///< per dim: axes, major to minor; none: whole
  std::string where;  ///< for messages: "inputs/specs/fsdp.yaml:12" or "command line"
};

/// A partition spec (docs/sharding-specs.md) from `sharding.spec` in the input file. Names are
/// unique: config/ rejects duplicates.
struct Spec {
  std::vector<SpecEntry> entries;
};

/// Formats dims as written in a spec: "[[shard, replicate], null]".
std::string to_string(const std::vector<std::vector<std::string>>& dims);

}  // namespace llamesh::sharding
