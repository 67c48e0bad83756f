#include "checkpoint/format/state_writer.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>

#include "checkpoint/format/format.hpp"
#include "checkpoint/format/h5.hpp"
#include "comm/mpi/exchange.hpp"
#include "core/file.hpp"
#include "core/hash.hpp"
#include "device/device.hpp"

namespace llamesh::checkpoint {
namespace {

/// A segment written by this rank; trivially copyable, so that ranks can exchange it.
struct Written {
  std::size_t dataset;
  Segment segment;
};

void write_attributes(h5::File& file, const Manifest& manifest) {
  const auto& progress = manifest.progress;
  file.create_attribute("format_version", version_of(manifest));
  file.create_attribute("step", progress.step);
  file.create_attribute("tokens", progress.tokens);
  file.create_attribute("seed", static_cast<std::int64_t>(progress.seed));
  file.create_attribute("mesh", progress.mesh);
  file.create_attribute("strategy", progress.strategy);
  file.create_attribute("llamesh_version", progress.llamesh_version);
  file.create_attribute("config", progress.config);
  file.create_attribute("model_config", progress.model_config);
  file.create_attribute("data", progress.data);
  file.create_attribute("bf16_products", progress.bf16_products);
  file.create_attribute("attention", progress.attention);
  file.create_attribute("arithmetic", progress.arithmetic);
  if (!progress.base) return;
  file.create_attribute("base_model", progress.base->path);
  file.create_attribute("base_hash", to_hex(progress.base->hash));
}

/// Links a tied head to the embedding in every group.
void link_tied_head(h5::File& file, const State& state) {
  const auto& table = state.layout.table();
  if (!table.tied()) return;
  const auto& embedding = table[table.embed_tokens.weight].name;
  for (const auto& group : state.groups)
    if (group.contents.frozen == table[table.embed_tokens.weight].frozen)
      file.link(dataset_path(group.path, embedding), dataset_path(group.path, "lm_head.weight"));
}

/// Creates attributes, datasets and links on one rank. A full disk is then an error on that rank
/// alone, and no rank waits for another inside HDF5.
void create_structure(const std::filesystem::path& path, const State& state,
                      const Manifest& manifest) {
  Descriptor::to_write(path, O_WRONLY | O_CREAT | O_EXCL);  // sets the mode
  auto file = h5::File::create(path);
  try {
    write_attributes(file, manifest);
    for (const auto& entry : manifest.datasets) file.create_dataset(entry.path, entry.shape);
    link_tied_head(file, state);
    file.close();
  } catch (...) {
    file.abandon();
    throw;
  }
}

/// A host-readable fp32 view of tensors, one at a time.
class HostView {
 public:
  /// Returns a view of at most segment_numel elements. Valid until the next call.
  std::span<const float> of(const sharding::ShardValues& values) {
    if (const auto here = values.in_place(); !here.empty()) return here;
    if (!copy_) copy_ = device::Buffer::on_host(segment_numel * size_of(DType::f32));
    const auto copy = copy_.tensor(DType::f32, {values.numel()}).span<float>();
    values.download(copy);
    return copy;
  }

 private:
  device::Buffer copy_;  // a segment on a GPU or in bf16
};

/// The same file, opened without HDF5 and MPI-IO.
class PlainFile {
 public:
  PlainFile(const std::filesystem::path& path, bool early_write_back)
      : file_(Descriptor::to_write(path, O_WRONLY)), early_write_back_(early_write_back) {}
  /// Asks the kernel to start writing this range to disk; only a hint, so failures are ignored.
  void start_write_back(const DatasetEntry& entry, const BoxRange& range) const {
    if (!early_write_back_) return;
    std::int64_t first = entry.numel();
    std::int64_t last = 0;
    for_each_run(entry.shape, range, [&](std::int64_t begin, std::int64_t, std::int64_t count) {
      first = std::min(first, begin);
      last = begin + count;
    });
    ::sync_file_range(file_.get(), entry.offset + 4 * first, 4 * (last - first),
                      SYNC_FILE_RANGE_WRITE);
  }
  /// Writes the same bytes again after MPI-IO failed: MPI-IO hides the system's error and gives up
  /// on an interrupted or partial write. Throws the system's error if it persists.
  void write_after(const Error& failure, const DatasetEntry& entry, const BoxRange& range,
                   std::span<const float> values) {
    for_each_run(entry.shape, range, [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
      file_.write(entry.offset + 4 * begin, values.data() + at, 4 * count);
    });
    spdlog::warn("{}: {} bytes were written without MPI-IO, after: {}", file_.path().string(),
                 values.size_bytes(), failure.what());
  }

 private:
  Descriptor file_;
  bool early_write_back_;
};

std::vector<Written> write_transfers(std::vector<h5::Dataset>& datasets,
                                     const std::vector<DatasetEntry>& entries,
                                     const std::vector<ShardIo>& transfers, PlainFile& plain,
                                     const Source& source) {
  std::vector<Written> written;
  HostView host;
  for (const auto& t : transfers) {
    const auto& entry = entries[t.dataset];
    for_each_segment(t.count(), [&](std::int64_t at, std::int64_t count) {
      const ShardIo part{t.dataset, t.group,      t.parameter,
                         t.part,    t.begin + at, t.values.slice(at, count)};
      const auto values = source ? source(part) : host.of(part.values);
      const Segment segment{t.begin + at, count, hash_of(values.data(), values.size_bytes()),
                            t.part};
      written.push_back({t.dataset, segment});
      const auto range = entry.range(segment);
      try {
        datasets[t.dataset].write(range.box, range.begin, values);
      } catch (const Error& failure) {
        plain.write_after(failure, entry, range, values);
      }
      plain.start_write_back(entry, range);
    });
  }
  return written;
}

/// All-gathers the segments.
void exchange_segments(const comm::Communicator& world, const std::vector<Written>& mine,
                       std::vector<DatasetEntry>& entries) {
  for (const auto& written : comm::all_gather_lists(world, mine))
    entries[written.dataset].segments.push_back(written.segment);
  for (auto& entry : entries)
    std::ranges::sort(entry.segments, {},
                      [](const Segment& s) { return std::pair(s.part, s.begin); });
}

}  // namespace

Manifest write_state(const std::filesystem::path& path, const State& state,
                     const TrainState& progress, const comm::Communicator& world,
                     const CheckpointOptions& options, const Source& source) {
  Manifest manifest{progress, 0, 0, datasets_of(state)};
  comm::agree(world, [&] {
    if (world.rank() == 0) create_structure(path, state, manifest);
  });
  // Open the plain file first: a rank that fails to open inside MPI-IO would wait there for the
  // others.
  std::optional<PlainFile> plain;
  comm::agree(world, [&] { plain.emplace(path, options.early_write_back); });
  std::optional<h5::File> file;
  std::vector<Written> written;
  try {
    agree_or_abort(world, "opening",
                   [&] { file = h5::File::open_to_fill(path, world, options.mpi_io_hints); });
    std::vector<h5::Dataset> datasets;
    comm::agree(world, [&] {
      for (auto& entry : manifest.datasets) {
        datasets.push_back(file->dataset(entry.path));
        entry.offset = datasets.back().offset();
      }
    });
    comm::agree(world, [&] {
      written =
          write_transfers(datasets, manifest.datasets, transfers_to_write(state), *plain, source);
    });
    agree_or_abort(world, "closing", [&] {
      datasets.clear();
      file->close();
    });
  } catch (...) {
    if (file) file->abandon();  // closing it would wait for all ranks
    throw;
  }
  // Sync on each rank: on a cluster file system fsync covers this node's writes.
  comm::agree(world, [&] { Descriptor::to_write(path, O_WRONLY).sync(); });
  exchange_segments(world, written, manifest.datasets);
  const auto sums = comm::on_rank_0(world, [&] {
    return fmt::format("{} {}", Descriptor::to_read(path).bytes(),
                       metadata_hash(path, manifest.datasets));
  });
  manifest.file_bytes = std::stoll(sums);
  manifest.metadata_hash = std::stoull(sums.substr(sums.find(' ')));
  return manifest;
}

std::uint64_t metadata_hash(const std::filesystem::path& path,
                            const std::vector<DatasetEntry>& datasets) {
  const auto file = Descriptor::to_read(path, ExitCode::io_failure);
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // bytes of datasets: begin, end
  for (const auto& d : datasets) ranges.emplace_back(d.offset, d.offset + 4 * d.numel());
  const auto size = file.bytes();
  ranges.emplace_back(size, size);
  std::ranges::sort(ranges);
  RunningHash hash;
  std::vector<char> buffer(std::size_t{1} << 20U);
  std::int64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    while (at < begin) {
      const auto count = std::min(begin - at, std::ssize(buffer));
      file.read(at, buffer.data(), count);
      hash.add(buffer.data(), static_cast<std::size_t>(count));
      at += count;
    }
    at = std::max(at, end);
  }
  return hash.value();
}

}  // namespace llamesh::checkpoint
