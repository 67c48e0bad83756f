#pragma once

#include "app/commands.hpp"

namespace llamesh::app {

/// The mean loss, the perplexity and, for text, the bits per byte of a model over files, cut into
/// sequences as a run's validation data is, documents parted where the model's run parted them.
/// Under mpirun the ranks share the sequences.
int evaluate(const EvaluateArguments& arguments);

}  // namespace llamesh::app
