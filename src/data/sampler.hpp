#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data/data_options.hpp"

namespace llamesh::data {

/// Number of whole sequences in a stream: sequence i covers tokens [i*T, i*T + T], T inputs and
/// the targets shifted by one, so that the last target needs one token more.
std::int64_t whole_sequences(std::int64_t tokens, std::int64_t sequence_length);

/// The `index`-th element of a permutation of [0, count) that is a function of (seed, epoch) only.
/// O(1) time and memory: a Feistel network with Philox as its round function on the next larger
/// power of four, walked until it falls below `count` (Black and Rogaway, "Ciphers with arbitrary
/// finite domains", CT-RSA 2002).
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t seed,
                      std::int64_t epoch);

/// What the sampler needs to know of a source.
struct Share {
  std::int64_t sequences;
  double weight = 1;  ///< how often an epoch reads each of them
};

/// A sequence of a source.
struct SourceSequence {
  std::size_t source;
  std::int64_t sequence;
  bool operator==(const SourceSequence&) const = default;
};

/// The order of the sequences. Position p = step * global_batch + j counts the sequences of the
/// whole run, for any number of ranks. An epoch takes from each source its quota, round(weight x
/// sequences), of positions, in mixed order. The sequence at a position is a function of it and the
/// seed: the source's draws are counted across epochs, and its draw d is element d % n of the (d /
/// n)-th permutation of its n sequences (where the quota is a multiple of n the mixed order will
/// do, and it is sequence d % n). So n draws from a multiple of n on read each sequence once.
class Sampler {
 public:
  /// Throws a user error when a source has no sequence, or a weight so small that an epoch would
  /// never read it, or so large that positions would overflow.
  Sampler(std::span<const Share> shares, Order order, std::uint64_t seed);

  /// Positions in an epoch.
  std::int64_t epoch_length() const { return ends_.back(); }
  /// Those of them that read a source.
  std::int64_t quota(std::size_t source) const {
    return ends_[source] - (source == 0 ? 0 : ends_[source - 1]);
  }
  /// Order::sequential reads the sources of an epoch one after another.
  SourceSequence sequence_at(std::int64_t position) const;

 private:
  std::vector<Share> shares_;
  std::vector<std::int64_t> ends_;  ///< of the sources' quotas, added up
  Order order_;
  std::uint64_t seed_;
};

}  // namespace llamesh::data
