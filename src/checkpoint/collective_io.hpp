#pragma once

#include <functional>

#include "comm/communicator.hpp"

namespace llamesh::checkpoint {

/// comm::agree() for a phase in which HDF5 itself communicates. When it fails on this rank, the
/// other ranks may wait for it inside HDF5 forever and never reach agree(): after 5 s this rank
/// prints the error and ends the job (exit 74). The phase is recorded as a collective of this
/// `kind`, e.g. "opening", so that ranks that wait in it can ask the others; what only the disk
/// delays belongs outside of it.
void agree_or_abort(const comm::Communicator& world, const char* kind,
                    const std::function<void()>& phase);

}  // namespace llamesh::checkpoint
