#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/calls/collective_call.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// Returns a hash over the fingerprints of these calls, in order. Pure.
std::uint64_t fingerprint_of(std::span<const CollectiveCall> calls);

/// Shows where two sequences of lines first differ: the lines, marked, with up to three lines of
/// context from each side. Empty if they are equal. Pure.
std::string first_difference(const std::string& mine, int rank, const std::string& theirs,
                             int other);

/// Compares what all ranks have called in these groups since the last check, in one small
/// collective over the world: order, kinds, dtypes and sizes must be the same on all ranks in a
/// group. The flight recorder keeps their calls (FlightRecorder::keep_calls()). If ranks differ,
/// every rank throws: one an internal error that shows both sides, which is also logged, the others
/// PeerFailure. Collective; every rank passes its groups along the same axes in the same order.
void check_fingerprints(const Communicator& world, std::span<const Members* const> groups);

}  // namespace llamesh::comm
