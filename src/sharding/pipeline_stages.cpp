#include "sharding/pipeline_stages.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "core/error.hpp"

namespace llamesh::sharding {
namespace {

using model::index;
using model::ParameterTable;

/// Returns the layer that has a module, or the number of layers for what comes behind them.
std::size_t layer_of(const ParameterTable& table, model::ModuleId module) {
  const auto after = std::ranges::upper_bound(table.layers, index(module), {},
                                              [](model::ModuleId id) { return index(id); });
  expects(after != table.layers.begin(), "{} comes before the layers", table[module].name);
  const auto layer = static_cast<std::size_t>(after - table.layers.begin()) - 1;
  const bool is_inside = table[module].name.starts_with(table[table.layers[layer]].name + '.') ||
                         module == table.layers[layer];
  return is_inside ? layer : table.layers.size();
}

/// Returns the products of each layer with a token, and behind them the head's.
std::vector<double> costs_of(const ParameterTable& table) {
  std::vector<double> costs(table.layers.size() + 1);
  for (const auto& parameter : table.parameters)
    if (index(parameter.module) >= index(table.layers.front()))
      costs[layer_of(table, parameter.module)] += static_cast<double>(parameter.active_numel());
  if (table.tied()) costs.back() += static_cast<double>(table[table.lm_head.weight].numel());
  return costs;
}

/// Divides layers among so many chunks that the largest sum of costs is as small as possible. The
/// last chunk has the head, too.
std::vector<std::int64_t> balanced(const std::vector<double>& costs, std::size_t chunks) {
  const auto layers = costs.size() - 1;
  // largest[c][n]: of the first n layers in c + 1 chunks
  std::vector<std::vector<double>> largest(chunks, std::vector<double>(layers + 1, 1e300));
  std::vector<std::vector<std::size_t>> first(chunks, std::vector<std::size_t>(layers + 1));
  std::vector<double> sums(layers + 1);
  std::partial_sum(costs.begin(), costs.end() - 1, sums.begin() + 1);
  for (std::size_t c = 0; c < chunks; ++c)
    for (std::size_t n = c + 1; n <= layers; ++n)
      for (std::size_t from = c == 0 ? 0 : c; from < (c == 0 ? 1 : n); ++from) {
        const double head = c + 1 == chunks ? costs.back() : 0;
        const double own = sums[n] - sums[from] + head;
        const double all = c == 0 ? own : std::max(own, largest[c - 1][from]);
        if (all >= largest[c][n]) continue;
        largest[c][n] = all;
        first[c][n] = from;
      }
  std::vector<std::int64_t> counts(chunks);
  for (std::size_t c = chunks, end = layers; c-- > 0;) {
    counts[c] = static_cast<std::int64_t>(end - first[c][end]);
    end = first[c][end];
  }
  return counts;
}

}  // namespace

std::vector<model::LayerRange> chunk_layers(const ParameterTable& table,
                                            const PipelineOptions& options, int stages) {
  const auto layers = std::ssize(table.layers);
  const std::int64_t chunks = std::int64_t{stages} * options.chunks;
  validate(chunks <= layers,
           "{} pipeline stages with {} chunks each need {} layers, but the model has {}; lower "
           "mesh.axes.pipeline or pipeline.chunks",
           stages, options.chunks, chunks, layers);
  auto counts = options.layers;
  if (counts.empty()) counts = balanced(costs_of(table), static_cast<std::size_t>(chunks));
  validate(std::ssize(counts) == chunks,
           "pipeline.layers has {} numbers, but {} pipeline stages with {} chunks each have {} "
           "chunks; give one number for each",
           counts.size(), stages, options.chunks, chunks);
  const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  validate(sum == layers && std::ranges::min(counts) >= 1,
           "pipeline.layers [{}] adds up to {} layers, but the model has {}; every chunk needs one "
           "or more",
           fmt::join(counts, ", "), sum, layers);
  std::vector<model::LayerRange> ranges;
  std::size_t at = 0;
  for (const auto count : counts) {
    ranges.push_back({.first = at, .last = at + static_cast<std::size_t>(count)});
    at = ranges.back().last;
  }
  return ranges;
}

void place_in_stages(Placements& placements, const ParameterTable& table,
                     const comm::ParallelDims& dims, const std::vector<model::LayerRange>& chunks) {
  const int stages = dims.group_size(dims.pipeline());
  if (stages == 1) return;
  const auto stage_of = [&](std::size_t layer) {
    const auto chunk = std::ranges::find_if(
        chunks, [&](const model::LayerRange& range) { return layer < range.last; });
    return chunk == chunks.end() ? stages - 1 : static_cast<int>(chunk - chunks.begin()) % stages;
  };
  for (std::size_t p = 0; p < placements.size(); ++p) {
    const auto module = table.parameters[p].module;
    const bool before = index(module) < index(table.layers.front());
    placements[p].stages = {before ? 0 : stage_of(layer_of(table, module))};
  }
  if (!table.tied()) return;
  auto& tied = placements[index(table.lm_head.weight)];
  tied.stages = {0, stages - 1};
  tied.partial |= dims.pipeline();
}

}  // namespace llamesh::sharding
