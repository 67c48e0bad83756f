#pragma once

#include <string>

#include "comm/mesh/communicator.hpp"

namespace llamesh::train {

/// Refuses a job on GPUs in which ranks have computed attention by different implementations, whose
/// sums differ in the last bits. Warns if the steps in the run's checkpoint were computed by
/// another one (`saved`; empty: not known). Call it after a step. Collective.
void check_attention(const comm::Communicator& world, const std::string& saved);

/// The same, with this rank's implementation given.
void check_attention(const comm::Communicator& world, const std::string& saved,
                     const std::string& used);

}  // namespace llamesh::train
