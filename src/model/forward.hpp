#pragma once

#include "model/activations.hpp"
#include "model/block.hpp"

/// What training, evaluation and inference have in common.
namespace llamesh::model {

/// Embedding and layers: the residual stream after the last layer. tokens (M) int32.
Residual forward(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                 Tensor tokens);

/// The final norm of it (M', D'), in a.normed_last. Its module is entered by the caller.
Tensor final_norm(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                  const Residual& hidden);

}  // namespace llamesh::model
