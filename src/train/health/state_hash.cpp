#include "train/health/state_hash.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi/exchange.hpp"
#include "core/box.hpp"
#include "core/hash.hpp"
#include "sharding/shard_values.hpp"
#include "train/health/state_parts.hpp"

namespace llamesh::train {
namespace {

/// Elements on the host at a time.
constexpr std::int64_t piece_numel = std::int64_t{1} << 20;

/// Maps the bits one to one for each number, so that no change in one element keeps its hash.
std::uint64_t hash_of_element(std::uint64_t number, float value) {
  auto hash = number * 0x9E3779B97F4A7C15U ^ std::bit_cast<std::uint32_t>(value);
  hash = (hash ^ (hash >> 32U)) * 0xD6E8FEB86659FD93U;
  hash = (hash ^ (hash >> 32U)) * 0xD6E8FEB86659FD93U;
  return hash ^ (hash >> 32U);
}

std::uint64_t hash_of_name(const std::string& name) {
  RunningHash hash;
  hash.add(name.data(), name.size());
  return hash.value();
}

/// Hashes this rank's piece.
std::uint64_t hash_piece(const sharding::ShardedState& state, const sharding::ShardedTensor& tensor,
                         std::size_t unit, const sharding::Piece& piece) {
  const auto& layout = state.layout();
  const auto& parameter = layout.table()[piece.parameter];
  const auto start = hash_of_name(parameter.name + ' ' + tensor.name);
  const auto range = layout.range(piece, state.rank());
  const auto shard = tensor.of(unit, piece);
  std::vector<float> values;
  std::uint64_t sum = 0;
  for (std::int64_t first = 0; first < piece.count; first += piece_numel) {
    const auto count = std::min(piece_numel, piece.count - first);
    values.resize(static_cast<std::size_t>(count));
    sharding::download_values(tensor.memory, values, shard.slice(first, count));
    for_each_run(parameter.shape, {range.box, range.begin + first, count},
                 [&](std::int64_t begin, std::int64_t at, std::int64_t length) {
                   for (std::int64_t i = 0; i < length; ++i)
                     sum += hash_of_element(start + static_cast<std::uint64_t>(begin + i),
                                            values[static_cast<std::size_t>(at + i)]);
                 });
  }
  return sum;
}

/// Adds up the ranks' hashes.
StateHashes summed(const comm::Communicator& world,
                   const std::map<std::string, std::uint64_t>& mine) {
  std::vector<std::uint64_t> values;
  for (const auto& [part, hash] : mine) values.push_back(hash);
  std::vector<std::uint64_t> all(values.size() * static_cast<std::size_t>(world.size()));
  comm::all_gather_bytes(world, std::as_bytes(std::span(values)),
                         std::as_writable_bytes(std::span(all)), "the hashes of the state");
  for (std::size_t i = values.size(); i < all.size(); ++i) all[i % values.size()] += all[i];
  StateHashes sums;
  std::size_t i = 0;
  for (const auto& [part, hash] : mine) sums[part] = to_hex(all[i++]);
  return sums;
}

}  // namespace

StateHashes hash_state(const comm::Communicator& world, const sharding::ShardedState& state) {
  const auto& layout = state.layout();
  const auto& table = layout.table();
  std::map<std::string, std::uint64_t> hashes;  // the same keys on every rank
  for (const auto& parameter : table.parameters)
    if (!parameter.frozen) hashes[part_of(table, parameter)] = 0;
  state.stream().record().wait();
  std::vector<const sharding::ShardedTensor*> tensors{&state.masters()};
  for (const auto& moment : state.moments()) tensors.push_back(&moment);
  for (const auto& shared : state.outer()) tensors.push_back(&shared);
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    if (layout.units()[u].frozen || !layout.holds(u, state.rank())) continue;
    for (const auto& piece : layout.pieces(u, state.rank())) {
      const auto& parameter = table[piece.parameter];
      if (!layout.placement(piece.parameter).is_first_copy(layout.dims(), state.rank())) continue;
      for (const auto* tensor : tensors)
        if (tensor->has == nullptr || tensor->has(parameter))
          hashes[part_of(table, parameter)] += hash_piece(state, *tensor, u, piece);
    }
  }
  return summed(world, hashes);
}

}  // namespace llamesh::train
