#include "train/health/layer_norms.hpp"

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "comm/mpi/exchange.hpp"
#include "ops/ops.hpp"
#include "train/health/state_parts.hpp"

namespace llamesh::train {

LayerNorms layer_norms(const comm::Communicator& world, const sharding::ShardedState& state,
                       int replicas) {
  const auto& layout = state.layout();
  const auto& table = layout.table();
  struct Squares {
    double gradients = 0, weights = 0;
  };
  struct Pieces {
    std::vector<Tensor> gradients, weights;
  };
  std::map<std::string, Pieces> mine;  // the same keys on every rank
  for (const auto& parameter : table.parameters)
    if (!parameter.frozen) mine[part_of(table, parameter)] = {};
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    if (layout.units()[u].frozen || !layout.holds(u, state.rank())) continue;
    for (const auto& piece : layout.pieces(u, state.rank())) {
      if (!layout.placement(piece.parameter).is_first_copy(layout.dims(), state.rank())) continue;
      auto& pieces = mine[part_of(table, table[piece.parameter])];
      pieces.gradients.push_back(state.gradients().of(u, piece));
      pieces.weights.push_back(state.masters().of(u, piece));
    }
  }
  std::vector<Squares> values;
  for (const auto& [part, pieces] : mine)
    values.push_back({ops::sum_of_squares(state.stream(), pieces.gradients),
                      ops::sum_of_squares(state.stream(), pieces.weights)});
  std::vector<Squares> all(values.size() * static_cast<std::size_t>(world.size()));
  comm::all_gather_bytes(world, std::as_bytes(std::span(values)),
                         std::as_writable_bytes(std::span(all)), "the norms of layers");
  LayerNorms norms;
  for (std::size_t i = 0; const auto& [part, pieces] : mine) {
    Squares sum;
    for (std::size_t at = i; at < all.size(); at += values.size())
      sum = {sum.gradients + all[at].gradients, sum.weights + all[at].weights};
    norms.gradients[part] = std::sqrt(sum.gradients / replicas);
    norms.weights[part] = std::sqrt(sum.weights / replicas);
    ++i;
  }
  return norms;
}

}  // namespace llamesh::train
