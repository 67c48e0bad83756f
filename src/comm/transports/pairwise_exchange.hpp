#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/calls/collective_call.hpp"
#include "comm/mpi/communicator.hpp"
#include "core/tensor.hpp"
#include "device/buffer.hpp"

namespace llamesh::comm {

/// The part that a peer sends to this rank.
struct SentPart {
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  ///< in the peer's tensor, bytes
};

/// Fails if a peer sends another number of bytes than this rank expects; `announced` is by rank.
void check_received(const CollectiveCall& call, const Communicator& group,
                    const PeerParts& received, std::span<const SentPart> announced);

/// Blocking collectives by MPI point-to-point between pairs of ranks, on any memory. In step k a
/// rank exchanges a piece with rank XOR k, or, if the ranks are no power of two, sends one to the
/// k-th rank after it and receives one from the k-th before it. Few are in flight: a large group is
/// never flooded, and a receiver adds one piece while the next arrives. Bandwidth optimal. Sums are
/// those of the balanced binary tree over the steps, which for a power of two is the tree over the
/// ranks, as in sum_parts(): addends change sides, which moves no bit. One thread at a time; every
/// rank makes the same calls. Tensors and results as in Collectives.
class PairwiseExchange {
 public:
  /// Collective: messages use a duplicate of `group`.
  explicit PairwiseExchange(const Communicator& group) : group_(group.duplicate()) {}

  /// Returns the communicator that carries its messages.
  const Communicator& group() const { return group_; }
  /// Returns the bytes that the first sum over `ranks`, with parts in this dtype, allocates and the
  /// object then keeps.
  static std::int64_t scratch_bytes(int ranks, DType parts);

  void all_gather(const Tensor& whole, const Tensor& mine);
  void reduce_scatter(const Tensor& mine, const Tensor& parts, Accumulate accumulate);
  void all_reduce(const Tensor& sum, const Tensor& data);
  void broadcast(const Tensor& data, int root);
  /// As Collectives::move_parts(). Receives all that is sent even if a size is wrong, so that no
  /// sender waits, and then fails.
  void move_parts(const CollectiveCall& call, const PeerParts& received, const PeerParts& sent);
  /// Returns the parts that the peers in the call send to this rank, by rank. Sends each peer a
  /// small message, unless all parts are equal.
  std::vector<SentPart> announce(const CollectiveCall& call, const PeerParts& sent);

 private:
  /// Callback that returns the range exchanged with `peer`.
  using Range = std::function<Tensor(int peer)>;
  using Arrived = std::function<void(const Tensor& piece, int peer, std::int64_t first)>;

  /// Sets or adds to `mine` the sum over ranks of their part(this rank).
  void reduce(const Tensor& mine, const Range& part, Accumulate accumulate);
  void all_reduce_small(const Tensor& data);
  /// Sends outgoing(peer) to and receives incoming(peer) from every other rank; a rank's outgoing
  /// range and its peer's incoming one have the same size, which may be zero. With `arrived`,
  /// pieces are received into scratch and passed to it; `first` is the piece's first element.
  void exchange(const Range& outgoing, const Range& incoming, const Arrived& arrived = {});
  /// Returns room for the pieces in flight, then for a sum in fp32 per level.
  std::byte* scratch(DType parts);

  Communicator group_;
  device::Buffer scratch_;
};

}  // namespace llamesh::comm
