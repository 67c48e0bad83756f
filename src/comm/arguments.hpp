#pragma once

#include <cstdint>

#include "comm/collectives.hpp"

namespace llamesh::comm {

// What the implementations of Collectives have in common: the contract of their arguments, the
// traffic formulas, and the end of their streams.

/// Throw an internal error when the tensors of a call do not fit the contract of Collectives.
void check_all_gather(const Collectives& axis, const Tensor& whole, const Tensor& mine);
void check_reduce_scatter(const Collectives& axis, const Tensor& mine, const Tensor& parts,
                          Accumulate accumulate);
void check_all_reduce(const Tensor& data);
void check_broadcast(const Collectives& axis, const Tensor& data, int root);

/// The formulas of Collectives::bytes_sent().
std::int64_t all_gather_bytes(const Tensor& whole, int size);
std::int64_t reduce_scatter_bytes(const Tensor& parts, int size);
std::int64_t all_reduce_bytes(const Tensor& data, int size);
std::int64_t broadcast_bytes(const Collectives& axis, const Tensor& data, int root);

/// Waits for the work of a stream and ends its worker. When an exception unwinds this thread, waits
/// for other ranks are cancelled first, since those will not arrive.
void finish(device::Stream& stream);

}  // namespace llamesh::comm
