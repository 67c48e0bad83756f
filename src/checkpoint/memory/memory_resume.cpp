#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>

#include "checkpoint/memory/image_exchange.hpp"
#include "checkpoint/memory/memory_checkpoints.hpp"
#include "checkpoint/memory/memory_folder.hpp"
#include "comm/transports/exchange.hpp"
#include "core/error.hpp"

// Resuming from memory.

namespace llamesh::checkpoint {
namespace {

/// A state that images may hold, with or without frozen weights, and the ranks' keys for it.
struct Candidate {
  State state;
  std::vector<ImageKey> keys;
};

/// The newest set, and the state that it holds.
struct Choice {
  const State& state;
  ImageSet set;
};

std::int64_t free_bytes(const std::filesystem::path& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  return error ? 0 : static_cast<std::int64_t>(space.available);
}

std::optional<Choice> newest_of(const std::vector<Candidate>& candidates,
                                std::span<const FoundImage> found, const comm::Topology& topology) {
  std::optional<Choice> newest;
  for (const auto& candidate : candidates) {
    auto set = newest_set(found, candidate.keys, topology);
    if (set && (!newest || set->step > newest->set.step))
      newest.emplace(Choice{candidate.state, std::move(*set)});
  }
  return newest;
}

}  // namespace

/// Gathers the images on all nodes.
std::vector<FoundImage> MemoryCheckpoints::find_images() const {
  std::vector<FoundImage> mine;
  comm::agree(world_, [&] {
    if (leads_node_)
      mine = images_in(folder_, run_, topology_.node_of[static_cast<std::size_t>(world_.rank())]);
  });
  return comm::all_gather_lists(world_, mine);
}

std::optional<TrainState> MemoryCheckpoints::resume(const State& state, std::int64_t disk_step,
                                                    const Accept& accept) {
  auto found = find_images();
  std::erase_if(found, [&](const FoundImage& image) { return image.step <= disk_step; });
  if (found.empty()) return {};
  const auto noted = std::ranges::max(found, {}, &FoundImage::disk_step).disk_step;
  if (noted > disk_step) {
    if (world_.rank() == 0)
      spdlog::warn(
          "memory checkpoints are not used: they were made with step {} on disk, but the newest "
          "there is now step {}",
          noted, std::max<std::int64_t>(disk_step, 0));
    return {};
  }
  std::vector<Candidate> candidates{{state, gather_keys(state)}};
  if (const auto trained = state.trained(); key_of(trained) != key_of(state))
    candidates.push_back({trained, gather_keys(trained)});
  while (const auto choice = newest_of(candidates, found, topology_)) {
    if (!receive(choice->set, found)) {
      if (world_.rank() == 0)
        spdlog::warn(
            "memory checkpoints are not used: a node has too little room in /dev/shm to receive "
            "its images of step {} from other nodes",
            choice->set.step);
      return {};
    }
    if (drop_damaged(choice->set, found)) continue;
    auto progress = load(choice->set, choice->state, accept);
    resumed_ = choice->set;
    return progress;
  }
  if (world_.rank() == 0)
    spdlog::warn(
        "memory checkpoints are not used: no step after the newest one on disk has the shards of "
        "all ranks (they were lost with a node, or the mesh or the model has changed)");
  return {};
}

std::vector<ImageKey> MemoryCheckpoints::gather_keys(const State& state) const {
  return comm::all_gather(world_, key_of(state), "the keys of memory checkpoints");
}

/// Returns this node's image in a set.
MemoryImage MemoryCheckpoints::open_image(const ImageKey& key, const ImageSet& set) const {
  for (int slot = 0; slot < images_per_key; ++slot) {
    const auto path = folder_ / image_name(key, slot);
    const auto header = MemoryImage::read_header(path);
    if (header && header->run == run_ && header->key == key && header->start == set.start &&
        header->step == set.step)
      return {path, key.bytes, header->text_bytes};
  }
  fail(ExitCode::io_failure, "the memory checkpoint of step {} in {} has disappeared", set.step,
       folder_.string());
}

/// Opens the slot for a received image: an empty one, else one whose step cannot be used, else the
/// older one.
MemoryImage MemoryCheckpoints::open_slot_for(const FoundImage& image) const {
  make_memory_folder(folder_);
  const auto rank_of = [&](int slot) -> std::int64_t {
    const auto header = MemoryImage::read_header(folder_ / image_name(image.key, slot));
    if (!header) return -2;
    return header->step > image.step ? -1 : header->step;
  };
  const int slot = rank_of(0) <= rank_of(1) ? 0 : 1;
  return {folder_ / image_name(image.key, slot), image.key.bytes, image.text_bytes};
}

/// Makes room for the images that this host's nodes receive. If there is too little, other steps'
/// images are removed, from `found` too. Returns false on every rank if a host still has too
/// little.
bool MemoryCheckpoints::make_room(const std::vector<ImageTransfer>& transfers, const ImageSet& set,
                                  std::vector<FoundImage>& found) const {
  constexpr std::int64_t page = 4096;
  const auto is_of_set = [&](const auto& image) {
    return image.start == set.start && image.step == set.step;
  };
  const auto& host = topology_.host_of[static_cast<std::size_t>(world_.rank())];
  std::int64_t needed = 0;
  for (const auto& transfer : transfers)
    if (topology_.host_of[static_cast<std::size_t>(transfer.to)] == host)
      needed += image_bytes(transfer.image.key.bytes, transfer.image.text_bytes) + page;
  const bool is_short = leads_node_ && needed > 0 && needed > free_bytes(folder_.parent_path());
  comm::agree(world_, [&] {
    if (!is_short) return;
    for (const auto& path : files_in(folder_)) {
      const auto header = MemoryImage::read_header(path);
      std::error_code ignored;
      if (!header || header->run != run_ || !is_of_set(*header))
        std::filesystem::remove(path, ignored);
    }
  });
  if (world_.max(std::int64_t{is_short}, "room for memory checkpoints") == 0) return true;
  std::erase_if(found, [&](const FoundImage& image) { return !is_of_set(image); });
  const bool enough = !leads_node_ || needed <= free_bytes(folder_.parent_path());
  return world_.min(std::int64_t{enough}, "room for memory checkpoints") != 0;
}

/// Brings the set's images to all nodes that need them. Returns false if a node has no room.
bool MemoryCheckpoints::receive(const ImageSet& set, std::vector<FoundImage>& found) const {
  const auto transfers = transfers_of(set, topology_);
  if (transfers.empty()) return true;
  if (!make_room(transfers, set, found)) return false;
  std::deque<MemoryImage> images;
  ImageExchange exchange;
  comm::agree(world_, [&] {
    for (const auto& [image, from, to] : transfers) {
      if (world_.rank() == to)
        exchange.receive(images.emplace_back(open_slot_for(image)), image.text_bytes, from);
      else if (world_.rank() == from)
        exchange.send(images.emplace_back(open_image(image.key, set)), to);
    }
  });
  exchange.run(world_, "memory checkpoints");
  std::int64_t bytes = 0;
  for (const auto& transfer : transfers) bytes += transfer.image.key.bytes;
  spdlog::info("memory checkpoints of step {}: {} of them ({:.2f} GiB) came from other nodes",
               set.step, transfers.size(), static_cast<double>(bytes) / (1 << 30));
  return true;
}

/// Verifies the set's images on each node. Removes damaged ones and their sources from `found`.
/// Returns true if any were damaged.
bool MemoryCheckpoints::drop_damaged(const ImageSet& set, std::vector<FoundImage>& found) const {
  const auto rank = static_cast<std::size_t>(world_.rank());
  const auto& mine = set.images[rank];
  bool first = true;  // on its node, among the ranks with this image
  for (std::size_t r = 0; r < rank; ++r)
    first =
        first && (topology_.node_of[r] != topology_.node_of[rank] || set.images[r].key != mine.key);
  const auto damaged = comm::agree_and_gather(
      world_,
      [&] {
        if (!first) return std::int64_t{0};
        auto image = open_image(mine.key, set);
        if (image.is_intact()) return std::int64_t{0};
        image.invalidate();
        return std::int64_t{1};
      },
      "whether memory checkpoints are intact");
  for (std::size_t r = 0; r < damaged.size(); ++r) {
    if (damaged[r] == 0) continue;
    if (world_.rank() == 0)
      spdlog::warn(
          "the memory checkpoint of step {} from node {} with the shards of rank {} is "
          "damaged: it is not used",
          set.step, memory_node_name(topology_, set.images[r].node), r);
    std::erase(found, set.images[r]);
  }
  return std::ranges::count(damaged, 0) < std::ssize(damaged);
}

TrainState MemoryCheckpoints::load(const ImageSet& set, const State& state,
                                   const Accept& accept) const {
  std::optional<MemoryImage> image;
  TrainState progress;
  comm::agree(world_, [&] {
    image.emplace(open_image(set.images[static_cast<std::size_t>(world_.rank())].key, set));
    progress = parse_train_state(image->text());
    if (accept && world_.rank() == 0) accept(progress);
  });
  image->load(state);
  return progress;
}

}  // namespace llamesh::checkpoint
