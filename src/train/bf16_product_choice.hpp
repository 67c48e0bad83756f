#pragma once

#include <string>

#include "comm/communicator.hpp"
#include "core/dtype.hpp"
#include "ops/bf16_products.hpp"

namespace llamesh::train {

/// The way that is faster for all ranks together, given what each has measured; native only where
/// every rank has it. Collective.
ops::Bf16Products agreed_bf16_products(const comm::Communicator& world,
                                       const ops::Bf16Seconds& mine);

/// Measures how the CPUs of the job multiply bf16 matrices faster, and has all ranks do it so; rank
/// 0 logs it. Nothing for fp32 and on GPUs. Collective.
void choose_bf16_products(const comm::Communicator& world, DType dtype);

/// The way taken, as a checkpoint records it; empty where there was no choice to make: for fp32, on
/// GPUs.
std::string recorded_bf16_products(DType dtype);

/// Goes on as the checkpoint's run did, so that its bits do not depend on a measurement. Returns
/// whether that changes the way; a warning where a rank lacks what is recorded. Collective.
bool keep_bf16_products(const comm::Communicator& world, DType dtype, const std::string& recorded);

}  // namespace llamesh::train
