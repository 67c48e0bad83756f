#include "data/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.hpp"
#include "core/philox.hpp"

namespace llamesh::data {
namespace {

/// Few rounds are enough for large domains; more also mix tiny ones well.
constexpr std::uint32_t rounds = 8;

/// Applies the Feistel network once to 2 * half_bits bits. A bijection.
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

Sampler::Sampler(std::span<const Share> shares, Order order, std::uint64_t seed)
    : shares_(shares.begin(), shares.end()), order_(order), seed_(seed) {
  // Far below the largest integer, so that positions can be counted over many epochs.
  constexpr double max_positions = 0x1p50;
  double positions = 0;
  expects(!shares.empty(), "a sampler over no source");
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const auto& [sequences, weight] = shares_[i];
    expects(sequences > 0 && weight > 0, "source {}: {} sequences, weight {}", i, sequences,
            weight);
    const double quota = std::round(weight * static_cast<double>(sequences));
    validate(quota >= 1,
             "data.train[{}]: with weight {} an epoch shows none of its {} sequences; raise the "
             "weight or leave the source out",
             i, weight, sequences);
    positions += quota;
    validate(positions <= max_positions,
             "data.train[{}]: weight {} of {} sequences makes an epoch of {} sequences; lower the "
             "weight",
             i, weight, sequences, positions);
    ends_.push_back(static_cast<std::int64_t>(positions));
  }
}

SourceSequence Sampler::sequence_at(std::int64_t position) const {
  const std::int64_t epoch = position / epoch_length();
  std::int64_t index = position % epoch_length();
  if (order_ == Order::shuffled) index = permuted(index, epoch_length(), seed_, epoch);
  const auto source =
      static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
  const std::int64_t in_quota = quota(source);
  const std::int64_t draw = epoch * in_quota + index - (ends_[source] - in_quota);
  const std::int64_t count = shares_[source].sequences;
  // If an epoch reads the whole source a whole number of times, the epoch's own order already mixes
  // its sequences.
  if (order_ == Order::sequential || in_quota % count == 0) return {source, draw % count};
  const std::uint64_t seed = seed_ ^ name_hash(fmt::format("data source {}", source));
  return {source, permuted(draw % count, count, seed, draw / count)};
}

}  // namespace llamesh::data
