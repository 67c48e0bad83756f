#include "checkpoint/memory/image_plan.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/memory/memory_image.hpp"
#include "core/hash.hpp"

namespace llamesh::checkpoint {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

/// Returns the ranks on each node, by local rank.
std::vector<std::vector<int>> ranks_by_node(const comm::Topology& topology) {
  std::vector<std::vector<int>> ranks(at(topology.nodes));
  for (std::size_t r = 0; r < topology.node_of.size(); ++r)
    ranks[at(topology.node_of[r])].push_back(static_cast<int>(r));
  return ranks;
}

/// Returns the rank on `node` with a rank's local rank, or another one if the node has fewer.
int counterpart(const std::vector<std::vector<int>>& ranks_on, int node, int rank,
                const comm::Topology& topology) {
  const auto& ranks = ranks_on[at(node)];
  return ranks[at(topology.local_rank_of[at(rank)]) % ranks.size()];
}

/// Returns an image for each rank from those of one start and step, or nothing if some rank has
/// none.
std::optional<std::vector<FoundImage>> choose_images(std::span<const FoundImage> images,
                                                     const std::vector<ImageKey>& keys,
                                                     const comm::Topology& topology) {
  std::map<std::uint64_t, std::vector<FoundImage>> by_key;
  for (const auto& image : images) by_key[image.key.hash].push_back(image);
  std::vector<int> received_from(at(topology.nodes));
  std::vector<FoundImage> chosen;
  for (std::size_t r = 0; r < keys.size(); ++r) {
    const auto found = by_key.find(keys[r].hash);
    if (found == by_key.end() || found->second.front().key != keys[r]) return {};
    const auto& copies = found->second;
    const auto own = std::ranges::find(copies, topology.node_of[r], &FoundImage::node);
    chosen.push_back(own != copies.end() ? *own
                                         : *std::ranges::min_element(copies, {}, [&](auto& copy) {
                                             return received_from[at(copy.node)];
                                           }));
    if (own == copies.end()) ++received_from[at(chosen.back().node)];
  }
  return chosen;
}

}  // namespace

ImageKey key_of(const State& state) {
  ImageKey key;
  RunningHash hash;
  const auto add = [&](std::int64_t number) { hash.add(&number, sizeof(number)); };
  const auto add_text = [&](const std::string& text) {
    add(std::ssize(text));
    hash.add(text.data(), text.size());
  };
  std::vector<GroupContents> contents;
  for (const auto& group : state.groups) {
    contents.push_back(group.contents);
    const auto before = key.bytes;
    for (const auto& shard : group.shards) key.bytes += shard ? shard_bytes_in_image(shard) : 0;
    if (key.bytes == before) continue;
    add_text(group.path);
    add(group.contents.frozen ? 1 : 0);
    for (const auto& shard : group.shards) {
      add(shard ? shard.numel() : 0);
      add(static_cast<std::int64_t>(shard.dtype()));
    }
  }
  for (const auto& slice : held_by(state.layout, contents, state.rank)) {
    const auto& group = state.groups[slice.group];
    const auto part = state.layout.parts(slice.parameter)[at(slice.part)];
    add_text(group.path);
    add_text(state.layout.table()[slice.parameter].name);
    for (const auto size : part.begin) add(size);
    for (const auto size : part.shape) add(size);
    add(static_cast<std::int64_t>(slice.unit));
    for (const auto number : {slice.begin, slice.count, slice.offset}) add(number);
  }
  key.hash = hash.value();
  return key;
}

std::vector<KeptImage> kept_images(const std::vector<ImageKey>& keys,
                                   const comm::Topology& topology, PartnerCopy partner) {
  const auto ranks_on = ranks_by_node(topology);
  std::vector<KeptImage> kept;
  std::map<std::uint64_t, int> nodes_with;
  for (int node = 0; node < topology.nodes; ++node) {
    std::set<std::uint64_t> here;
    for (const int rank : ranks_on[at(node)])
      if (here.insert(keys[at(rank)].hash).second)
        kept.push_back({keys[at(rank)], node, rank, rank});
    for (const auto key : here) ++nodes_with[key];
  }
  if (partner == PartnerCopy::off || topology.nodes == 1) return kept;
  const auto own = kept;
  for (const auto& image : own) {
    if (nodes_with[image.key.hash] > 1) continue;
    const int next = (image.node + 1) % topology.nodes;
    kept.push_back(
        {image.key, next, counterpart(ranks_on, next, image.rank, topology), image.rank});
  }
  std::ranges::stable_sort(kept, {}, &KeptImage::node);
  return kept;
}

std::vector<std::int64_t> bytes_per_node(const std::vector<KeptImage>& kept, int nodes) {
  std::vector<std::int64_t> bytes(at(nodes));
  for (const auto& image : kept)
    bytes[at(image.node)] += images_per_key * image_bytes(image.key.bytes);
  return bytes;
}

std::optional<ImageSet> newest_set(std::span<const FoundImage> found,
                                   const std::vector<ImageKey>& keys,
                                   const comm::Topology& topology) {
  std::map<std::pair<std::int64_t, std::uint64_t>, std::vector<FoundImage>> sets;
  for (const auto& image : found) sets[{image.step, image.start}].push_back(image);
  for (auto set = sets.rbegin(); set != sets.rend(); ++set)
    if (auto images = choose_images(set->second, keys, topology))
      return ImageSet{set->first.second, set->first.first, std::move(*images)};
  return {};
}

std::vector<ImageTransfer> transfers_of(const ImageSet& set, const comm::Topology& topology) {
  const auto ranks_on = ranks_by_node(topology);
  std::set<std::pair<int, std::uint64_t>> done;  // node, key
  std::vector<ImageTransfer> transfers;
  for (std::size_t r = 0; r < set.images.size(); ++r) {
    const auto& image = set.images[r];
    const int node = topology.node_of[r];
    if (image.node == node || !done.insert({node, image.key.hash}).second) continue;
    const int rank = static_cast<int>(r);
    transfers.push_back({image, counterpart(ranks_on, image.node, rank, topology), rank});
  }
  return transfers;
}

}  // namespace llamesh::checkpoint
