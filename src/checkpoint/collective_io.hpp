#pragma once

#include <functional>

#include "comm/mesh/communicator.hpp"

namespace llamesh::checkpoint {

/// Runs comm::agree() for a phase in which HDF5 itself communicates. If the phase fails on this
/// rank, the other ranks may wait inside HDF5 forever and never reach agree(). So after 5 s this
/// rank prints the error and ends the job (exit 74). The flight record lists the phase as a
/// collective named `kind`, e.g. "opening", so waiting ranks can query the others. Keep pure disk
/// work out of the phase.
void agree_or_abort(const comm::Communicator& world, const char* kind,
                    const std::function<void()>& phase);

}  // namespace llamesh::checkpoint
