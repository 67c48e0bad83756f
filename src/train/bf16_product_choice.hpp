#pragma once

#include <string>

#include "comm/communicator.hpp"
#include "core/dtype.hpp"
#include "ops/bf16_products.hpp"

namespace llamesh::train {

/// The faster way for all ranks together, given each rank's measurements; native only where every
/// rank supports it. Collective.
ops::Bf16Products agreed_bf16_products(const comm::Communicator& world,
                                       const ops::Bf16Seconds& mine);

/// Measures which way of computing bf16 matmuls is faster on the CPUs of the job and sets it on all
/// ranks; rank 0 logs it. Does nothing for fp32 and on GPUs. Collective.
void choose_bf16_products(const comm::Communicator& world, DType dtype);

/// The chosen way, as a checkpoint records it; empty for fp32 and on GPUs, where there is no
/// choice.
std::string recorded_bf16_products(DType dtype);

/// Restores the choice of the checkpoint's run, so that results do not depend on a measurement.
/// Returns whether that changes it; warns where a rank does not support the recorded way.
/// Collective.
bool keep_bf16_products(const comm::Communicator& world, DType dtype, const std::string& recorded);

}  // namespace llamesh::train
