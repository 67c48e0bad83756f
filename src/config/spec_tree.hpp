#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/tree.hpp"
#include "sharding/spec.hpp"

namespace llamesh::config {

/// Whether an override is one of an entry of the spec, "sharding.spec.NAME=...".
bool is_spec_override(std::string_view text);

/// Makes `sharding.spec` of the inputs a flat map of names: a file is read (`resolve` makes its
/// path of the node), groups of keys become names with dots, then `overrides` replace entries or
/// add some; one that is null takes its entry away. Of torchprime's older files, which have the
/// spec in a group `sharding`, the rest is left out.
void include_spec(Node& root, const std::vector<std::string>& overrides,
                  const std::function<std::string(const Node&)>& resolve);

/// The spec of a flat map of names.
sharding::Spec spec_of(const Node& map);

/// The dims as YAML that spec_of() takes.
std::string yaml_dims(const std::vector<std::vector<std::string>>& dims);

}  // namespace llamesh::config
