#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/calls/collective_call.hpp"
#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// Returns the indices of ranks whose value differs from the majority (more than half). All indices
/// if no value has a majority; none if all are equal. Pure.
std::vector<int> minority_of(std::span<const std::uint64_t> by_rank);

/// Formats ranks: "rank 2", "ranks 0, 1, 3".
std::string list_of_ranks(std::span<const int> ranks);

/// Comparison of a group's calls, in order, as they are made. One thread at a time.
class FingerprintCheck {
 public:
  explicit FingerprintCheck(std::shared_ptr<const Members> group) : group_(std::move(group)) {}

  /// Compares the fingerprints of each rank's next call, by group rank; `mine` is this rank's. If
  /// they differ, all ranks exchange their calls over `group` and throw: the first rank that
  /// differs from the majority an internal error that names it, the others PeerFailure. The group's
  /// first rank also logs the preceding calls.
  void next(const CollectiveCall& mine, std::span<const std::uint64_t> by_rank,
            const Communicator& group);

 private:
  [[noreturn]] void differ(std::span<const CollectiveCall> by_rank,
                           const Communicator& group) const;

  std::shared_ptr<const Members> group_;
  std::int64_t number_ = 0;
  std::array<CollectiveCall, 4> former_;  ///< ring of the last calls, by number
};

}  // namespace llamesh::comm
