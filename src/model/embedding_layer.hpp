#pragma once

#include "model/block.hpp"

/// tokens (M) int32; out and its gradient (M', D') in the residual stream. The table is whole, or
/// this rank has some of its rows (a vocabulary part) or its residual stream columns. The caller
/// enters the module.
namespace llamesh::model {

/// out = table rows for the tokens.
void embed(const BlockContext& x, const Leaf& table, const Tensor& out, const Tensor& tokens);

/// Computes the table's gradient from out's gradient, x.d_residual.
void embed_backward(const BlockContext& x, const Leaf& table, const Tensor& tokens);

}  // namespace llamesh::model
