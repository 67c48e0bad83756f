#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data/data_options.hpp"

namespace llamesh::data {

/// Returns the whole sequences in a stream: sequence i covers tokens [i*T, i*T + T] as T inputs and
/// the targets shifted by one, so the last target needs one extra token.
std::int64_t whole_sequences(std::int64_t tokens, std::int64_t sequence_length);

/// Returns element `index` in a permutation of [0, count) that depends only on (seed, epoch). O(1)
/// time and memory: a Feistel network with Philox as its round function on the next larger power of
/// four, walked until the result falls below `count` (Black and Rogaway, "Ciphers with arbitrary
/// finite domains", CT-RSA 2002).
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t seed,
                      std::int64_t epoch);

/// The sampler's view of a source.
struct Share {
  std::int64_t sequences;
  double weight = 1;  ///< how often an epoch reads each sequence
};

/// A sequence in a source.
struct SourceSequence {
  std::size_t source;
  std::int64_t sequence;
  bool operator==(const SourceSequence&) const = default;
};

/// Order of the sequences. Position p = step * global_batch + j counts the sequences in the whole
/// run, for any number of ranks. An epoch takes a quota of round(weight x sequences) positions from
/// each source, in mixed order. The sequence at a position is a function of the position and the
/// seed. A source's draws are counted across epochs: draw d is element d % n in permutation d / n
/// of its n sequences. (If the quota is a multiple of n, the mixed order is enough, and draw d is
/// sequence d % n.) So n draws from a multiple of n on read each sequence once.
class Sampler {
 public:
  /// Throws a user error if a source has no sequence, or a weight so small that an epoch would
  /// never read it, or so large that positions would overflow.
  Sampler(std::span<const Share> shares, Order order, std::uint64_t seed);

  /// Returns the positions in an epoch.
  std::int64_t epoch_length() const { return ends_.back(); }
  /// Returns the positions per epoch that read this source.
  std::int64_t quota(std::size_t source) const {
    return ends_[source] - (source == 0 ? 0 : ends_[source - 1]);
  }
  /// Returns the sequence at a position. Order::sequential reads an epoch's sources one after
  /// another.
  SourceSequence sequence_at(std::int64_t position) const;

 private:
  std::vector<Share> shares_;
  std::vector<std::int64_t> ends_;  ///< prefix sums of the sources' quotas
  Order order_;
  std::uint64_t seed_;
};

}  // namespace llamesh::data
