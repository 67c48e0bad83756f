#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/calls/members.hpp"
#include "core/tensor.hpp"

namespace llamesh::comm {

/// A collective as one rank calls it. Trivially copyable: ranks exchange it, and the flight record
/// keeps it in a file. Texts are truncated to fit.
struct CollectiveCall {
  static constexpr std::int32_t none = -1;   ///< no rank
  static constexpr std::int32_t every = -2;  ///< every rank

  std::uint64_t group = 0;      ///< Members::id
  std::int64_t number = 0;      ///< in its group, from 1; 0 until it has started
  std::int64_t bytes = 0;       ///< tensor size, equal on all ranks; 0: control plane
  std::int32_t by_peer = 0;     ///< 1: sizes differ between peers, `bytes` is what this rank sends
  std::int32_t root = none;     ///< in a broadcast
  std::int32_t to = every;      ///< in a send_recv: the rank that this one sends to
  std::int32_t from = every;    ///< likewise: the rank that it receives from
  std::array<char, 48> axis{};  ///< "shard"; fits the names of all axes together
  std::array<char, 24> kind{};  ///< "all-gather"
  std::array<char, 96> subject{};  ///< unit or purpose: "layers.3"
  std::array<char, 8> dtype{};     ///< "fp32"; empty: control plane

  static CollectiveCall of(std::string_view kind, std::string_view subject,
                           std::string_view dtype = "", std::int64_t bytes = 0);
  /// Sets the group and the axis.
  CollectiveCall& along(const Members& members);

  /// Returns a hash over all that must be equal on every rank: kind, dtype, root, and bytes unless
  /// they differ by peer.
  std::uint64_t fingerprint() const;
  /// Compares subjects and what fingerprint() covers.
  bool operator==(const CollectiveCall& other) const;
};

/// Formats a call the same on all ranks: "all-gather of layers.3 (4096 bytes of fp32)".
std::string describe(const CollectiveCall& call);
/// Formats a call for messages about its group: "all-gather of layers.3 along shard".
std::string title(const CollectiveCall& call);

/// A dense tensor that consists of one part for each rank on an axis, in rank order.
class PeerParts {
 public:
  /// `counts`: elements for each rank, whose sum is the tensor's numel.
  PeerParts(const Tensor& data, std::span<const std::int64_t> counts);
  /// Splits `data` into `ranks` equal parts.
  PeerParts(const Tensor& data, int ranks);
  /// Makes all of `data` the part for `peer`; CollectiveCall::none: `data` is empty.
  PeerParts(const Tensor& data, int ranks, int peer);

  const Tensor& data() const { return data_; }
  Tensor operator[](int rank) const;
  /// Returns the bytes from the tensor's start to a rank's part.
  std::int64_t offset(int rank) const;

 private:
  Tensor data_;
  std::vector<std::int64_t> first_;  ///< element; one more than there are ranks
};

}  // namespace llamesh::comm
