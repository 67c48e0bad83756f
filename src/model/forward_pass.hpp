#pragma once

#include "core/tensor.hpp"
#include "model/description/parameters.hpp"
#include "model/layers/activations.hpp"
#include "model/layers/block.hpp"

/// The way from tokens to the final norm, which training, evaluation and inference share.
namespace llamesh::model {

/// Computes the gradients of the embeddings from their output's gradient, ctx.d_residual.
void embed_backward(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                    const Tensor& tokens);

/// Runs the embedding and all layers. Returns the residual stream after the last layer. tokens (M)
/// int32.
Residual forward(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                 Tensor tokens);

/// Returns the final norm (M', D'), in a.normed_last. The caller enters its module.
Tensor final_norm(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                  const Residual& hidden);

}  // namespace llamesh::model
