#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/dtype.hpp"

namespace llamesh::comm {

class Collectives;

/// Collectives that a rank has called along one axis since the last check. Order, kinds, dtypes and
/// sizes must be the same on all ranks along the axis. Only the calling thread uses it.
class Contract {
 public:
  struct Call {
    const char* kind;
    const char* subject;
    DType dtype;
    std::int64_t bytes;  ///< size of the tensor that is equal on all ranks
  };

  void note(const Call& call) { calls_.push_back(call); }
  /// Returns a hash over all calls in order, without their subjects.
  std::uint64_t hash() const;
  /// Lists the calls, one line each: "all-gather of layers.2: 4096 bytes of fp32".
  std::string describe() const;
  /// Forgets all calls.
  void clear() { calls_.clear(); }

 private:
  std::vector<Call> calls_;
};

/// Shows where two sequences of lines first differ: the lines, marked, with up to three lines of
/// context from each side. Empty if they are equal. Pure.
std::string first_difference(const std::string& mine, int rank, const std::string& theirs,
                             int other);

/// Compares all ranks' calls along these axes since the last check, in one small collective over
/// the world; the axes must record calls. If ranks on an axis differ, every rank throws: one an
/// internal error that shows both sides, which is also logged, the others PeerFailure. Collective;
/// every rank passes the same axes in the same order.
void check_contracts(const Communicator& world, std::span<Collectives* const> axes);

}  // namespace llamesh::comm
