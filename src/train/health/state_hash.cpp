#include "train/health/state_hash.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi/exchange.hpp"
#include "core/box.hpp"
#include "core/hash.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"
#include "train/health/state_parts.hpp"

namespace llamesh::train {
namespace {

std::uint64_t hash_of_name(const std::string& name) {
  RunningHash hash;
  hash.add(name.data(), name.size());
  return hash.value();
}

/// Equally long runs, which begin equally far apart in the parameter and follow one another in a
/// shard.
struct Runs {
  std::int64_t at = 0;  ///< in the shard
  ops::ElementNumbers numbers = {};
  std::int64_t count = 0;

  /// Adds a run if it has the same length and distance. Returns true if so.
  bool take(std::int64_t begin, std::int64_t length) {
    const auto distance =
        begin - static_cast<std::int64_t>(numbers.first) - (count - 1) * numbers.stride;
    if (length != numbers.cols || (count > 1 && distance != numbers.stride)) return false;
    if (count == 1) numbers.stride = distance;
    ++count;
    return true;
  }
};

/// Hashes this rank's piece.
std::uint64_t hash_piece(const sharding::ShardedState& state, const sharding::ShardedTensor& tensor,
                         std::size_t unit, const sharding::Piece& piece) {
  const auto& layout = state.layout();
  const auto& parameter = layout.table()[piece.parameter];
  const auto start = hash_of_name(parameter.name + ' ' + tensor.name);
  std::vector<Runs> all;
  for_each_run(parameter.shape, layout.range(piece, state.rank()),
               [&](std::int64_t begin, std::int64_t at, std::int64_t length) {
                 if (all.empty() || !all.back().take(begin, length))
                   all.push_back({at, {static_cast<std::uint64_t>(begin), length, length}, 1});
               });
  const auto shard = tensor.of(unit, piece);
  std::uint64_t sum = 0;
  for (auto& [at, numbers, count] : all) {
    numbers.first += start;
    sum += ops::hash_elements(device::stream_of(tensor.memory),
                              shard.slice(at, count * numbers.cols), numbers);
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
