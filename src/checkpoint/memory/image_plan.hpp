#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/format/checkpoint_options.hpp"
#include "checkpoint/format/state.hpp"
#include "comm/mesh/topology.hpp"

/// Decisions about memory checkpoints: who keeps which image, and which images a start resumes
/// from. All functions are pure, so every rank decides the same.
namespace llamesh::checkpoint {

/// Number of images that a node keeps of the same shards: the last two steps.
inline constexpr int images_per_key = 2;

/// Contents and size of a rank's shards. Ranks with equal keys hold the same elements in the same
/// places, whatever their mesh.
struct ImageKey {
  std::uint64_t hash = 0;
  std::int64_t bytes = 0;  ///< of the shards
  bool operator==(const ImageKey&) const = default;
};

/// Returns the key of this rank's shards. Reads none of their values.
ImageKey key_of(const State& state);

/// An image that a node keeps.
struct KeptImage {
  ImageKey key;
  int node;
  int rank;  ///< rank on that node that fills it
  int from;  ///< rank with the shards; `rank` itself, or one on another node (a partner copy)

  bool is_partner_copy() const { return from != rank; }
  bool operator==(const KeptImage&) const = default;
};

/// Returns all images, by node. Ranks on a node with the same shards share an image. If only one
/// node has some shards, the next node keeps a partner copy of them. `keys` are by rank.
std::vector<KeptImage> kept_images(const std::vector<ImageKey>& keys,
                                   const comm::Topology& topology, PartnerCopy partner);

/// Returns the bytes that each node's images take in memory.
std::vector<std::int64_t> bytes_per_node(const std::vector<KeptImage>& kept, int nodes);

/// An image found on a node by a start.
struct FoundImage {
  int node = 0;
  int slot = 0;
  ImageKey key;
  std::uint64_t start = 0;      ///< identity of the start that made it
  std::int64_t step = 0;        ///< optimizer steps done
  std::int64_t disk_step = -1;  ///< newest checkpoint on disk at that time; -1: none
  std::int64_t text_bytes = 0;  ///< of its TrainState
  bool operator==(const FoundImage&) const = default;
};

/// Images of one start and step that together hold the state.
struct ImageSet {
  std::uint64_t start = 0;
  std::int64_t step = 0;
  std::vector<FoundImage> images;  ///< by rank; from its own node if possible
};

/// Returns the newest complete set for ranks that hold `keys`; nothing if there is none. Images
/// that a node lacks are taken evenly from the others.
std::optional<ImageSet> newest_set(std::span<const FoundImage> found,
                                   const std::vector<ImageKey>& keys,
                                   const comm::Topology& topology);

/// An image that a node receives from another.
struct ImageTransfer {
  FoundImage image;
  int from;  ///< rank on the image's node
  int to;    ///< lowest rank on its node that needs the image

  bool operator==(const ImageTransfer&) const = default;
};
/// Returns the transfers after which each node has the images of its ranks.
std::vector<ImageTransfer> transfers_of(const ImageSet& set, const comm::Topology& topology);

}  // namespace llamesh::checkpoint
