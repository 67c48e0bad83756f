#pragma once

#include "model/block.hpp"
#include "ops/calls.hpp"

namespace llamesh::model {

/// ops::rms_norm() on rows in the residual stream. If ranks have columns, gathers the row sums in
/// between. Leave call.row_sums empty.
void rms_norm(const BlockContext& x, ops::RmsNormCall call);

/// Like rms_norm(), for ops::rms_norm_backward().
void rms_norm_backward(const BlockContext& x, ops::RmsNormBackwardCall call);

}  // namespace llamesh::model
