#pragma once

#include <functional>

#include "model/layers/router_balance.hpp"
#include "sharding/sharded_state.hpp"

namespace llamesh::train {

/// Moves the biases by which sigmoid routers choose experts by `rate`: up for an expert that fewer
/// tokens than the mean took in the step, down for one that more took (Wang et al. 2024,
/// DeepSeek-V3). Calls on_updated(unit) after changing a unit. Frozen biases stay.
void shift_selection_biases(sharding::ShardedState& state, const model::RouterSums& sums,
                            double rate, const std::function<void(std::size_t)>& on_updated);

}  // namespace llamesh::train
