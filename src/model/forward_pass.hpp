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

/// Runs the embedding: writes the residual stream before the first layer to `out` (M', D'). tokens
/// (M) int32.
void embed(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
           const Tensor& out, const Tensor& tokens);

/// Runs a chunk's layers on the residual stream in the first one's input(). Returns the stream
/// after the last layer.
Residual run_layers(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                    const ChunkPass& chunk);

/// Runs the embedding and all layers of a whole model. Returns the residual stream after the last
/// layer. tokens (M) int32.
Residual forward(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                 const Tensor& tokens);

/// Returns the final norm (M', D'), in a.normed_last. The caller enters its module.
Tensor final_norm(const BlockContext& ctx, const ParameterTable& table, const Activations& a,
                  const Residual& hidden);

}  // namespace llamesh::model
