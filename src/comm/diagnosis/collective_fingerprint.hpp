#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/calls/collective_call.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// Fingerprint of the collectives that a rank has called along one axis since the last check, with
/// the calls themselves for the message. Collectives keeps one only on request (debug.contract).
/// Order, kinds, dtypes and sizes must be the same on all ranks along the axis. Only the calling
/// thread uses it.
class CollectiveFingerprint {
 public:
  /// `group`: the ranks along the axis.
  explicit CollectiveFingerprint(std::shared_ptr<const Members> group) : group_(std::move(group)) {}

  const Members& group() const { return *group_; }
  void note(const CollectiveCall& call) { calls_.push_back(call); }
  /// Returns a hash over the fingerprints of all calls, in order.
  std::uint64_t hash() const;
  /// Lists the calls, one line each.
  std::string describe() const;
  /// Forgets all calls.
  void clear() { calls_.clear(); }

 private:
  std::shared_ptr<const Members> group_;
  std::vector<CollectiveCall> calls_;
};

/// Shows where two sequences of lines first differ: the lines, marked, with up to three lines of
/// context from each side. Empty if they are equal. Pure.
std::string first_difference(const std::string& mine, int rank, const std::string& theirs,
                             int other);

/// Compares all ranks' calls along these axes since the last check, in one small collective over
/// the world. If ranks on an axis differ, every rank throws: one an
/// internal error that shows both sides, which is also logged, the others PeerFailure. Collective;
/// every rank passes the same axes in the same order.
void check_fingerprints(const Communicator& world, std::span<CollectiveFingerprint* const> axes);

}  // namespace llamesh::comm
