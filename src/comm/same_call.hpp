#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "core/tensor.hpp"

namespace llamesh::comm {

/// A rank's call as the other ranks in its group see it. Texts are truncated to fit.
struct CallImage {
  std::array<char, 16> kind{};     ///< "all-gather"
  std::array<char, 48> subject{};  ///< "layers.3"; not compared
  std::array<char, 8> dtype{};
  std::int64_t bytes = 0;  ///< size of the tensor that is equal on all ranks

  static CallImage of(const char* kind, const char* subject, const Tensor& whole);
  bool same_as(const CallImage& other) const;
};

/// Formats a call: "all-gather of layers.3 (4096 bytes of fp32)".
std::string describe(const CallImage& call);

/// Returns the indices of ranks whose value differs from the majority (more than half). All indices
/// if no value has a majority; none if all are equal. Pure.
std::vector<int> minority_of(std::span<const std::uint64_t> by_rank);

/// Formats ranks: "rank 2", "ranks 0, 1, 3".
std::string list_of_ranks(std::span<const int> ranks);

/// Comparison of a group's calls, in order, as they are made. One thread at a time.
class SameCalls {
 public:
  explicit SameCalls(std::shared_ptr<const Members> group) : group_(std::move(group)) {}

  /// Compares the next call on each rank, by group rank; only this rank's if the ranks did not
  /// exchange them. If they differ, all ranks throw: the first rank that differs from the majority
  /// an internal error that names it, the others PeerFailure. The group's first rank also logs the
  /// preceding calls.
  void next(std::span<const CallImage> by_rank, int own_rank);

 private:
  [[noreturn]] void differ(std::span<const CallImage> by_rank, int own_rank) const;

  std::shared_ptr<const Members> group_;
  std::int64_t number_ = 0;
  std::array<CallImage, 4> former_;  ///< ring of the last calls, by number
};

}  // namespace llamesh::comm
