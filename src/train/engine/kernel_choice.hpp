#pragma once

#include <string>

#include "comm/mpi/communicator.hpp"
#include "core/dtype.hpp"
#include "ops/bf16_products.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

/// Returns the faster method for all ranks together, given each rank's measurements; native only if
/// every rank supports it. Collective.
ops::Bf16Products agreed_bf16_products(const comm::Communicator& world,
                                       const ops::Bf16Seconds& mine);

/// Measures which bf16 matmul method is faster on the job's CPUs and sets it on all ranks; rank 0
/// logs it. A run with the same bits on every mesh takes the CPU's instructions if all ranks have
/// them, whatever their speed. Does nothing for fp32 and on GPUs. Collective.
void choose_bf16_products(const comm::Communicator& world, DType dtype,
                          Reproducible reproducible = Reproducible::launch);

/// Returns the chosen method, as recorded in a checkpoint; empty for fp32 and on GPUs, where there
/// is no choice.
std::string recorded_bf16_products(DType dtype);

/// Restores the method recorded in the checkpoint, so that results do not depend on a measurement.
/// Returns true if that changes it; warns if a rank does not support it. Collective.
bool keep_bf16_products(const comm::Communicator& world, DType dtype, const std::string& recorded);

/// Prepares linear layers in FP8, and logs it if they are emulated. Refuses GPUs that would have to
/// emulate them, unless that is asked for, and fp32 parameters there. Collective.
void use_linear_precision(const comm::Communicator& world,
                          const sharding::PrecisionOptions& precision);

/// Refuses a job with the same bits on every mesh whose ranks compute on several kinds of
/// processors. Collective.
void check_arithmetic(const comm::Communicator& world);

/// Refuses a job on GPUs in which ranks have computed attention by different implementations, whose
/// sums differ in the last bits. Warns if the steps in the run's checkpoint were computed by
/// another one (`saved`; empty: not known). Call it after a step. Collective.
void check_attention(const comm::Communicator& world, const std::string& saved);

/// The same, with this rank's implementation given.
void check_attention(const comm::Communicator& world, const std::string& saved,
                     const std::string& used);

}  // namespace llamesh::train
