#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/tree.hpp"
#include "sharding/spec.hpp"

namespace llamesh::config {

/// Returns true if an override is for a spec entry, "sharding.spec.NAME=...".
bool is_spec_override(std::string_view text);

/// Turns the inputs' `sharding.spec` into a flat map by name: reads a file (`resolve` returns its
/// path), joins groups of keys into dotted names, then lets `overrides` replace or add entries; a
/// null override removes its entry. From torchprime's older files, which have the spec in a group
/// `sharding`, everything else is dropped.
void include_spec(Node& root, const std::vector<std::string>& overrides,
                  const std::function<std::string(const Node&)>& resolve);

/// Returns the spec in a flat map by name.
sharding::Spec spec_of(const Node& map);

/// Formats the dims as YAML for spec_of().
std::string yaml_dims(const std::vector<std::vector<std::string>>& dims);

}  // namespace llamesh::config
