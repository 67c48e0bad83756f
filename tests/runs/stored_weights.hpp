#pragma once

#include <span>
#include <vector>

#include "checkpoint/stored_model.hpp"
#include "model/parameters.hpp"

namespace llamesh::test {

/// Returns every parameter of a stored model, one after the other.
inline std::vector<float> stored_weights(const checkpoint::StoredModel& stored,
                                         const model::ParameterTable& table) {
  std::vector<float> all;
  for (std::size_t p = 0; p < table.parameters.size(); ++p) {
    const auto whole = Box::whole(table.parameters[p].shape);
    const auto at = all.size();
    all.resize(at + static_cast<std::size_t>(whole.numel()));
    stored.read(static_cast<model::ParameterId>(p), {whole, 0, whole.numel()},
                std::span(all).subspan(at));
  }
  return all;
}

}  // namespace llamesh::test
