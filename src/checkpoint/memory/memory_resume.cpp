#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <map>
#include <ranges>
#include <utility>

#include "checkpoint/memory/image_exchange.hpp"
#include "checkpoint/memory/memory_checkpoints.hpp"
#include "checkpoint/memory/memory_folder.hpp"
#include "comm/mpi/exchange.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"

// Resuming from memory.

namespace llamesh::checkpoint {
namespace {

/// A state that images may hold, with or without frozen weights, and the ranks' keys for it.
struct Candidate {
  State state;
  bool has_frozen;  ///< all that the run has
  std::vector<ImageKey> keys;
};

/// The newest set, and the state that it holds.
struct Choice {
  const Candidate* holds;
  ImageSet set;
};

std::int64_t free_bytes(const std::filesystem::path& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  return error ? 0 : static_cast<std::int64_t>(space.available);
}

/// Returns the newest step that was on disk when any of the images was made; -1: none.
std::int64_t newest_noted(std::span<const FoundImage> found) {
  std::int64_t newest = -1;
  for (const auto& image : found) newest = std::max(newest, image.disk_step);
  return newest;
}

std::optional<Choice> newest_of(const std::vector<Candidate>& candidates,
                                std::span<const FoundImage> found, const comm::Topology& topology) {
  std::optional<Choice> newest;
  for (const auto& candidate : candidates) {
    auto set = newest_set(found, candidate.keys, topology);
    if (set && (!newest || set->step > newest->set.step))
      newest = Choice{&candidate, std::move(*set)};
  }
  return newest;
}

/// Logs lines of the form "PATH is not used: REASON", and what is used instead.
void warn_of(const std::vector<std::string>& problems, const std::optional<Choice>& instead,
             std::int64_t disk_step) {
  const auto next = instead ? fmt::format("goes on from step {} in memory", instead->set.step)
                    : disk_step >= 0 ? fmt::format("goes on from step {} on disk", disk_step)
                                     : std::string("begins anew: it has no other checkpoint");
  for (const auto& problem : problems)
    spdlog::warn("the memory checkpoint {}; the run {}", problem, next);
}

/// Returns true if no lower rank on its node shares the rank's image.
bool is_first_with_image(const ImageSet& set, std::size_t rank, const comm::Topology& topology) {
  for (std::size_t r = 0; r < rank; ++r)
    if (topology.node_of[r] == topology.node_of[rank] && set.images[r].key == set.images[rank].key)
      return false;
  return true;
}

/// Returns the TrainState of an image. Throws exit 74 if anything in the image is wrong.
TrainState checked_progress(const MemoryImage& image, bool has_frozen) {
  if (!image.is_intact())
    fail(ExitCode::io_failure, "it is damaged: the hashes of its bytes do not match");
  auto progress = image.progress();
  if (progress.base.has_value() == has_frozen)
    fail(ExitCode::io_failure, "{}",
         has_frozen ? "it holds all weights, but its text names a base model for the frozen ones"
                    : "it holds no frozen weights, and its text names no base model for them");
  return progress;
}

}  // namespace

std::filesystem::path MemoryCheckpoints::path_of(const FoundImage& image) const {
  return std::filesystem::path(prefix_ + memory_node_name(topology_, image.node)) /
         image_name(image.key, image.slot);
}

/// Gathers the images on all nodes.
std::vector<FoundImage> MemoryCheckpoints::find_images() const {
  std::vector<FoundImage> mine;
  comm::agree(world_, [&] {
    if (leads_node_)
      mine = images_in(folder_, run_, topology_.node_of[static_cast<std::size_t>(world_.rank())]);
  });
  return comm::all_gather_lists(world_, mine);
}

/// Gathers the lines about bad headers on all nodes.
std::vector<std::string> MemoryCheckpoints::find_bad_headers() const {
  const auto mine = leads_node_ ? bad_headers_in(folder_, run_) : std::vector<std::string>();
  std::vector<std::string> lines;
  for (const auto& of_rank : world_.all_gather(fmt::format("{}", fmt::join(mine, "\n"))))
    for (const auto& line : of_rank | std::views::split('\n'))
      if (!line.empty()) lines.emplace_back(line.begin(), line.end());
  return lines;
}

/// Removes the images whose size contradicts their hash, which includes it. Returns a line for
/// each.
std::vector<std::string> MemoryCheckpoints::drop_other_sizes(std::span<const ImageKey> keys,
                                                             std::vector<FoundImage>& found) const {
  std::map<std::uint64_t, std::int64_t> sizes;
  for (const auto& key : keys) sizes[key.hash] = key.bytes;
  std::vector<std::string> lines;
  std::erase_if(found, [&](const FoundImage& image) {
    const auto size = sizes.find(image.key.hash);
    if (size == sizes.end() || size->second == image.key.bytes) return false;
    lines.push_back(fmt::format("{} is not used: its shards have {} bytes, by their key {}",
                                path_of(image).string(), image.key.bytes, size->second));
    return true;
  });
  return lines;
}

std::optional<TrainState> MemoryCheckpoints::resume(const State& state, std::int64_t disk_step,
                                                    const Accept& accept) {
  auto found = find_images();
  auto problems = find_bad_headers();
  std::erase_if(found, [&](const FoundImage& image) { return image.step <= disk_step; });
  if (found.empty() && problems.empty()) return {};
  if (const auto noted = newest_noted(found); noted > disk_step) {
    if (world_.rank() == 0)
      spdlog::warn(
          "memory checkpoints are not used: they were made with step {} on disk, but the newest "
          "there is now step {}",
          noted, std::max<std::int64_t>(disk_step, 0));
    return {};
  }
  std::vector<Candidate> candidates{{state, true, gather_keys(state)}};
  if (const auto trained = state.trained(); key_of(trained) != key_of(state))
    candidates.push_back({trained, false, gather_keys(trained)});
  for (const auto& candidate : candidates)
    for (auto& line : drop_other_sizes(candidate.keys, found)) problems.push_back(std::move(line));
  auto choice = newest_of(candidates, found, topology_);
  if (!choice && problems.empty() && world_.rank() == 0)
    spdlog::warn(
        "memory checkpoints are not used: no step after the newest one on disk has the shards of "
        "all ranks (they were lost with a node, or the mesh or the model has changed)");
  while (true) {
    if (world_.rank() == 0) warn_of(problems, choice, disk_step);
    if (!choice) return {};
    if (!receive(choice->set, found)) {
      if (world_.rank() == 0)
        spdlog::warn(
            "memory checkpoints are not used: a node has too little room in /dev/shm to receive "
            "its images of step {} from other nodes",
            choice->set.step);
      return {};
    }
    problems = drop_bad(choice->set, choice->holds->has_frozen, found);
    if (problems.empty()) break;
    choice = newest_of(candidates, found, topology_);
  }
  auto progress = load(choice->set, choice->holds->state, accept);
  resumed_ = std::move(choice->set);
  return progress;
}

std::vector<ImageKey> MemoryCheckpoints::gather_keys(const State& state) const {
  return comm::all_gather(world_, key_of(state), "the keys of memory checkpoints");
}

/// Returns this node's copy of an image in a set.
MemoryImage MemoryCheckpoints::open_image(const FoundImage& image) const {
  for (int slot = 0; slot < images_per_key; ++slot) {
    const auto path = folder_ / image_name(image.key, slot);
    const auto header = MemoryImage::read_header(path);
    if (header && header->run == run_ && header->key == image.key && header->start == image.start &&
        header->step == image.step && header->text_bytes == image.text_bytes)
      return {path, image.key.bytes, image.text_bytes};
  }
  fail(ExitCode::io_failure, "the memory checkpoint of step {} in {} has disappeared", image.step,
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
        exchange.send(images.emplace_back(open_image(image)), to);
    }
  });
  exchange.run(world_, "memory checkpoints");
  std::int64_t bytes = 0;
  for (const auto& transfer : transfers) bytes += transfer.image.key.bytes;
  spdlog::info("memory checkpoints of step {}: {} of them ({:.2f} GiB) came from other nodes",
               set.step, transfers.size(), static_cast<double>(bytes) / (1 << 30));
  return true;
}

/// Checks the set's images on each node, and that all ranks' texts are the same. Removes bad ones
/// and their sources from `found`, or the whole set if its texts differ. Returns a line for each.
std::vector<std::string> MemoryCheckpoints::drop_bad(const ImageSet& set, bool has_frozen,
                                                     std::vector<FoundImage>& found) const {
  const auto rank = static_cast<std::size_t>(world_.rank());
  std::string reason;
  std::uint64_t text = 0;  // hash; 0 if another rank checks the image
  comm::agree(
      world_,
      [&] {
        if (!is_first_with_image(set, rank, topology_)) return;
        auto image = open_image(set.images[rank]);
        try {
          const auto progress = to_text(checked_progress(image, has_frozen));
          text = hash_of(progress.data(), progress.size());
        } catch (const Error& bad) {
          reason = bad.what();
          image.invalidate();
        }
      },
      "whether memory checkpoints are intact");
  std::vector<std::string> lines;
  const auto reasons = world_.all_gather(reason);
  for (std::size_t r = 0; r < reasons.size(); ++r) {
    if (reasons[r].empty()) continue;
    lines.push_back(fmt::format("{} is not used: {}", path_of(set.images[r]).string(), reasons[r]));
    std::erase(found, set.images[r]);
  }
  const auto texts = comm::all_gather(world_, text, "the texts of memory checkpoints");
  const auto other = std::ranges::find_if(
      texts, [&](std::uint64_t hash) { return hash != 0 && hash != texts.front(); });
  if (!lines.empty() || other == texts.end()) return lines;
  std::erase_if(found, [&](const FoundImage& image) {
    return image.start == set.start && image.step == set.step;
  });
  const auto at = static_cast<std::size_t>(other - texts.begin());
  return {fmt::format("{} is not used: its text differs from that of {}",
                      path_of(set.images[at]).string(), path_of(set.images.front()).string())};
}

TrainState MemoryCheckpoints::load(const ImageSet& set, const State& state,
                                   const Accept& accept) const {
  std::optional<MemoryImage> image;
  TrainState progress;
  comm::agree(world_, [&] {
    image.emplace(open_image(set.images[static_cast<std::size_t>(world_.rank())]));
    progress = image->progress();
    if (accept && world_.rank() == 0) accept(progress);
  });
  image->load(state);
  return progress;
}

}  // namespace llamesh::checkpoint
