#include "data/sampler.hpp"

#include <bit>

#include "core/error.hpp"
#include "core/philox.hpp"

namespace llamesh::data {
namespace {

/// Few rounds suffice for large domains; more of them also mix tiny ones well.
constexpr std::uint32_t rounds = 8;

/// One pass of the network over 2 * half_bits bits, a bijection.
std::uint64_t feistel(std::uint64_t value, int half_bits, std::uint64_t key, std::uint64_t epoch) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    // right has at most 32 bits, so round and right never share a counter.
    const auto words = philox(key, epoch, (std::uint64_t{round} << 32U) | right);
    const std::uint64_t mixed = left ^ (words[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits) | right;
}

}  // namespace

std::int64_t whole_sequences(std::int64_t tokens, std::int64_t sequence_length) {
  return tokens > 0 ? (tokens - 1) / sequence_length : 0;
}

std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t seed,
                      std::int64_t epoch) {
  expects(index >= 0 && index < count, "element {} of a permutation of {}", index, count);
  if (count == 1) return 0;
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
  const int half_bits = (bits + 1) / 2;
  const std::uint64_t key = seed ^ name_hash("data order");
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = feistel(value, half_bits, key, static_cast<std::uint64_t>(epoch));
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

Sampler::Sampler(std::int64_t sequences, Order order, std::uint64_t seed)
    : sequences_(sequences), order_(order), seed_(seed) {
  expects(sequences > 0, "a sampler over {} sequences", sequences);
}

std::int64_t Sampler::sequence_of(std::int64_t position) const {
  const std::int64_t index = position % sequences_;
  if (order_ == Order::sequential) return index;
  return permuted(index, sequences_, seed_, position / sequences_);
}

}  // namespace llamesh::data
