#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/dtype.hpp"

namespace llamesh::comm {

class Collectives;

/// Which collectives a rank has called along one axis since the last check: their order, kinds,
/// dtypes and sizes have to be the same on all ranks of the axis. Only the calling thread uses it.
class Contract {
 public:
  struct Call {
    const char* kind;
    const char* subject;
    DType dtype;
    std::int64_t bytes;  ///< of the tensor that is as large on all ranks
  };

  void note(const Call& call) { calls_.push_back(call); }
  /// Of all calls in their order. Subjects are not part of it.
  std::uint64_t hash() const;
  /// A line for each call: "all-gather of layers.2: 4096 bytes of fp32".
  std::string describe() const;
  /// Starts anew.
  void clear() { calls_.clear(); }

 private:
  std::vector<Call> calls_;
};

/// Where two sequences of lines first differ, with up to three lines of each side before and after
/// it, marked. Empty where they are equal. Pure.
std::string first_difference(const std::string& mine, int rank, const std::string& theirs,
                             int other);

/// Compares what all ranks have called along these axes, which keep contracts, since the last
/// check, in one small collective of the world. Where the ranks of an axis differ, each rank
/// throws: one an internal error that shows both sides, which it also logs, the others PeerFailure.
/// Collective; every rank passes the same axes in the same order.
void check_contracts(const Communicator& world, std::span<Collectives* const> axes);

}  // namespace llamesh::comm
