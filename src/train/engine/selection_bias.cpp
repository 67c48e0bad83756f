#include "train/engine/selection_bias.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sharding/shard_values.hpp"

namespace llamesh::train {
namespace {

std::optional<model::ParameterId> bias_of(const model::ParameterTable& table, std::size_t layer) {
  const auto prefix = table[table.layers[layer]].name + '.';
  const auto found = std::ranges::find_if(table.parameters, [&](const model::Parameter& p) {
    return p.role == model::Role::selection_bias && p.name.starts_with(prefix);
  });
  if (found == table.parameters.end() || found->frozen) return {};
  return static_cast<model::ParameterId>(found - table.parameters.begin());
}

}  // namespace

void shift_selection_biases(sharding::ShardedState& state, const model::RouterSums& sums,
                            double rate, const std::function<void(std::size_t)>& on_updated) {
  const auto& layout = state.layout();
  const auto& masters = state.masters();
  for (std::size_t i = 0; i < sums.layers.size(); ++i) {
    const auto bias = bias_of(layout.table(), sums.layers[i]);
    if (!bias) continue;
    const auto unit = layout.place(*bias).unit;
    if (!layout.holds(unit, state.rank())) continue;
    const auto counts = sums.layer(i).counts;
    const float mean =
        std::accumulate(counts.begin(), counts.end(), 0.0F) / static_cast<float>(counts.size());
    for (const auto& piece : layout.pieces(unit, state.rank())) {
      if (piece.parameter != *bias) continue;
      std::vector<float> values(static_cast<std::size_t>(piece.count));
      const Tensor shard = masters.of(unit, piece);
      sharding::download_values(masters.memory, values, shard);
      const auto mine = std::span(counts).subspan(static_cast<std::size_t>(piece.begin));
      for (std::size_t e = 0; e < values.size(); ++e)
        values[e] += static_cast<float>(rate) *
                     static_cast<float>((mine[e] < mean ? 1 : 0) - (mine[e] > mean ? 1 : 0));
      sharding::upload_values(masters.memory, shard, values);
    }
    on_updated(unit);
  }
}

}  // namespace llamesh::train
