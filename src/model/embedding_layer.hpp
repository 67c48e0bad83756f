#pragma once

#include "model/block.hpp"

/// tokens (M) int32, out and its gradient (M', D') of the residual stream. The table is whole, or
/// this rank has rows of it (a part of the vocabulary), or its columns of the residual stream. The
/// module is entered by the caller.
namespace llamesh::model {

/// out = the rows of the table for the tokens.
void embed(const BlockContext& ctx, const WeightModule& table, const Tensor& out,
           const Tensor& tokens);

/// The table's gradient from that of `out`, ctx.d_residual.
void embed_backward(const BlockContext& ctx, const WeightModule& table, const Tensor& tokens);

}  // namespace llamesh::model
