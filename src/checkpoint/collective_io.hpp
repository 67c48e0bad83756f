#pragma once

#include <functional>

#include "comm/communicator.hpp"

namespace llamesh::checkpoint {

/// comm::agree() for a phase in which HDF5 itself communicates. When it fails here, the other ranks
/// may wait for this one inside HDF5 for ever, and never come to agree: after 5 s this rank then
/// tells what was wrong and ends the job (exit 74).
void agree_or_abort(const comm::Communicator& world, const std::function<void()>& phase);

}  // namespace llamesh::checkpoint
