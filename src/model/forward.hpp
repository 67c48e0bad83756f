#pragma once

#include "model/activations.hpp"
#include "model/block.hpp"

/// Code shared by training, evaluation and inference.
namespace llamesh::model {

/// Runs the embedding and all layers. Returns the residual stream after the last layer. tokens (M)
/// int32.
Residual forward(const BlockContext& x, const ParameterTable& table, const Activations& a,
                 Tensor tokens);

/// Returns the final norm (M', D'), in a.normed_last. The caller enters its module.
Tensor final_norm(const BlockContext& x, const ParameterTable& table, const Activations& a,
                  const Residual& hidden);

}  // namespace llamesh::model
