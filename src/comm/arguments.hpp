#pragma once

#include <cstdint>

#include "comm/collectives.hpp"

namespace llamesh::comm {

// Shared parts of the Collectives implementations: argument checks, traffic formulas, and stream
// shutdown.

/// Throw an internal error if the tensors in a call violate the contract of Collectives.
void check_all_gather(const Collectives& axis, const Tensor& whole, const Tensor& mine);
void check_reduce_scatter(const Collectives& axis, const Tensor& mine, const Tensor& parts,
                          Accumulate accumulate);
void check_all_reduce(const Tensor& data);
void check_broadcast(const Collectives& axis, const Tensor& data, int root);

/// Return the bytes counted by Collectives::bytes_sent().
std::int64_t all_gather_bytes(const Tensor& whole, int size);
std::int64_t reduce_scatter_bytes(const Tensor& parts, int size);
std::int64_t all_reduce_bytes(const Tensor& data, int size);
std::int64_t broadcast_bytes(const Collectives& axis, const Tensor& data, int root);

/// Waits for a stream's work and ends its worker. If an exception unwinds this thread, first
/// cancels waits for other ranks, since those will not arrive.
void finish(device::Stream& stream);

}  // namespace llamesh::comm
