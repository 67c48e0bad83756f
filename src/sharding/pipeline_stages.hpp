#pragma once

#include <cstdint>
#include <vector>

#include "model/layers/activations.hpp"
#include "sharding/placement.hpp"

/// Assigns layers to the stages of a pipeline.
namespace llamesh::sharding {

/// `pipeline:` section in the input file.
struct PipelineOptions {
  int chunks = 1;  ///< per stage: Megatron's virtual stages
  /// Layers of each chunk, in order; empty: as evenly as their products with tokens allow, the
  /// head's counted.
  std::vector<std::int64_t> layers = {};
};

/// Returns the layers of each chunk of a model on `stages` pipeline stages, of which the i-th lies
/// on stage i mod `stages`. Throws a user error with the numbers if the chunks do not have all
/// layers, or one of them has none. Pure.
std::vector<model::LayerRange> chunk_layers(const model::ParameterTable& table,
                                            const PipelineOptions& options, int stages);

/// Gives each parameter to the stage that has its layer: what comes before the layers to the first
/// one, what comes behind them to the last one, and a tied embedding to both. Pure.
void place_in_stages(Placements& placements, const model::ParameterTable& table,
                     const comm::ParallelDims& dims, const std::vector<model::LayerRange>& chunks);

}  // namespace llamesh::sharding
