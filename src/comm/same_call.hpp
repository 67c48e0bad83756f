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

/// What a rank is asked for, as the other ranks of its group see it. Texts are cut to their room.
struct CallImage {
  std::array<char, 16> kind{};     ///< "all-gather"
  std::array<char, 48> subject{};  ///< "layers.3"; not compared
  std::array<char, 8> dtype{};
  std::int64_t bytes = 0;  ///< of the tensor that is as large on all ranks

  static CallImage of(const char* kind, const char* subject, const Tensor& whole);
  bool same_as(const CallImage& other) const;
};

/// "all-gather of layers.3 (4096 bytes of fp32)".
std::string describe(const CallImage& call);

/// Of equal values on more than half of the ranks: the others, by index. All of them where no value
/// has a majority; none where all are equal. Pure.
std::vector<int> minority_of(std::span<const std::uint64_t> by_rank);

/// "rank 2", "ranks 0, 1, 3".
std::string list_of_ranks(std::span<const int> ranks);

/// The calls of one group in their order, compared while they are made. One thread at a time.
class SameCalls {
 public:
  explicit SameCalls(std::shared_ptr<const Members> group) : group_(std::move(group)) {}

  /// The next call of each rank, by rank of the group, or this rank's alone where the ranks did not
  /// exchange them. Where they differ, all ranks throw: the first of those that differ from the
  /// majority an internal error that names it, the others PeerFailure; the first rank of the group
  /// logs the calls before, too.
  void next(std::span<const CallImage> by_rank, int own_rank);

 private:
  [[noreturn]] void differ(std::span<const CallImage> by_rank, int own_rank) const;

  std::shared_ptr<const Members> group_;
  std::int64_t number_ = 0;
  std::array<CallImage, 4> former_;  ///< by number modulo their number
};

}  // namespace llamesh::comm
