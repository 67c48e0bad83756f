#pragma once

#include "model/block.hpp"
#include "ops/calls.hpp"

namespace llamesh::model {

/// ops::rms_norm() of rows of the residual stream. Where ranks have columns of it, the sums over
/// rows are gathered in between. The call's row_sums are left out.
void rms_norm(const BlockContext& ctx, ops::RmsNormCall call);

/// The same for ops::rms_norm_backward().
void rms_norm_backward(const BlockContext& ctx, ops::RmsNormBackwardCall call);

}  // namespace llamesh::model
