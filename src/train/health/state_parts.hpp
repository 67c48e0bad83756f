#pragma once

#include <string>

#include "model/description/parameters.hpp"

namespace llamesh::train {

/// Returns what a parameter is told under where the state is looked at in parts: its layer
/// ("model.layers.3"), or outside of layers its own name.
inline std::string part_of(const model::ParameterTable& table, const model::Parameter& parameter) {
  for (const auto layer : table.layers) {
    const auto& name = table[layer].name;
    if (parameter.name.starts_with(name + '.')) return name;
  }
  return parameter.name;
}

}  // namespace llamesh::train
