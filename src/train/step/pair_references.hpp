#pragma once

#include <vector>

#include "data/token_stream.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Log-probabilities under the reference model: (2 P) for each stream, with pair p's documents at
/// 2 p and 2 p + 1.
using PairReferences = std::vector<std::vector<float>>;

/// Returns the streams in their order there: training sources, then validation sets.
std::vector<const data::TokenStream*> pair_streams(const Setup& setup);

}  // namespace llamesh::train
