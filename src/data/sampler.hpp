#pragma once

#include <cstdint>

#include "data/options.hpp"

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

/// Which sequence is seen when. Position p = step * global_batch + j counts the sequences of the
/// whole run, whatever the number of ranks; an epoch is `sequences` positions long and shows every
/// sequence once.
class Sampler {
 public:
  Sampler(std::int64_t sequences, Order order, std::uint64_t seed);
  std::int64_t sequences() const { return sequences_; }
  std::int64_t sequence_of(std::int64_t position) const;

 private:
  std::int64_t sequences_;
  Order order_;
  std::uint64_t seed_;
};

}  // namespace llamesh::data
