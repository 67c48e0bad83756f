#include "checkpoint/memory/memory_snapshot.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/hash.hpp"
#include "device/device.hpp"

namespace llamesh::checkpoint {
namespace {

constexpr std::int64_t header_bytes = 4096;
constexpr std::int64_t snapshot_segment_bytes = std::int64_t{4} << 20U;  // hashed together
constexpr std::int64_t max_snapshot_bytes = std::int64_t{1} << 50U;

static_assert(std::has_unique_object_representations_v<SnapshotHeader>);

std::int64_t num_segments(std::int64_t shard_bytes) {
  return (shard_bytes + snapshot_segment_bytes - 1) / snapshot_segment_bytes;
}

/// Calls visit(offset, part, memory) for all shards, one after the other, in parts that lie within
/// a segment of the snapshot.
template <class Visit>
void for_each_shard_part(const State& state, Visit visit) {
  std::int64_t at = 0;
  for (const auto& group : state.groups)
    for (const auto& shard : group.shards) {
      if (!shard) continue;
      const auto element = size_of(shard.dtype());
      for (std::int64_t first = 0; first < shard.numel();) {
        const auto offset = at + first * element;
        const auto left = (snapshot_segment_bytes - offset % snapshot_segment_bytes) / element;
        const auto count = std::min(left, shard.numel() - first);
        visit(offset, shard.slice(first, count), group.memory);
        first += count;
      }
      at += shard_bytes_in_snapshot(shard);
    }
}

/// Copies shards on a GPU through pinned host memory.
class ShardDownload {
 public:
  void operator()(std::byte* to, const Tensor& part, device::MemoryKind memory) {
    const auto bytes = static_cast<std::size_t>(part.bytes());
    if (device::host_accessible(memory)) {
      std::memcpy(to, part.data(), bytes);
      return;
    }
    if (!pinned_) pinned_ = device::Buffer::on_host(snapshot_segment_bytes);
    device::download(device::stream_of(memory), pinned_.data(), part);
    std::memcpy(to, pinned_.data(), bytes);
  }

 private:
  device::Buffer pinned_;
};

/// Allocates a file's memory, so no later write can fail.
void take_memory(const Descriptor& file, std::int64_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(file.get(), 0, bytes);
  validate_host(
      error == 0,
      "no room for a memory checkpoint of {} bytes in {}: {}; enlarge /dev/shm (mount -o "
      "remount,size=...), use more nodes, or set checkpoint.memory.partner=off or every_steps=0",
      bytes, file.path().parent_path().string(), std::strerror(error));
}

bool is_sealed(const SnapshotHeader& header) {
  return header.layout == SnapshotHeader::known_layout && header.hash == header.expected_hash();
}

/// Returns what is wrong with a sealed header of a file or mapping of so many bytes; empty if
/// nothing is.
std::string problem_of(const SnapshotHeader& header, std::int64_t bytes) {
  if (header.step < 0 || header.step > max_step)
    return fmt::format("its step is {}, beyond 0 to {}", header.step, max_step);
  if (header.disk_step < -1 || header.disk_step > header.step)
    return fmt::format("it is of step {} and names step {} on disk", header.step, header.disk_step);
  if (header.key.bytes < 0 || header.key.bytes > max_snapshot_bytes)
    return fmt::format("its shards have {} bytes", header.key.bytes);
  if (header.json_bytes < 0 || header.json_bytes > longest_manifest)
    return fmt::format("its JSON has {} bytes", header.json_bytes);
  const auto expected = snapshot_bytes(header.key.bytes, header.json_bytes);
  if (bytes >= expected) return "";
  return fmt::format("it has {} bytes where its header says {}", bytes, expected);
}

/// The header of a file, and the file's size.
struct SealedHeader {
  SnapshotHeader header;
  std::int64_t file_bytes;
};

/// Returns nothing if the file is not this user's or its header is torn.
std::optional<SealedHeader> read_sealed(const std::filesystem::path& path) try {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid())
    return {};
  SnapshotHeader header;
  const auto file = Descriptor::to_read(path);
  if (file.read_some(0, &header, sizeof(header)) != sizeof(header)) return {};
  return is_sealed(header) ? std::optional(SealedHeader{header, file.bytes()}) : std::nullopt;
} catch (const Error&) {  // it cannot be read, or has just disappeared
  return {};
}

}  // namespace

std::uint64_t SnapshotHeader::expected_hash() const {
  return hash_of(this, offsetof(SnapshotHeader, hash));
}

std::int64_t shard_bytes_in_snapshot(const Tensor& shard) {
  constexpr std::int64_t line = 64;
  return (shard.bytes() + line - 1) / line * line;
}

std::int64_t snapshot_bytes(std::int64_t shard_bytes, std::int64_t json_bytes) {
  return header_bytes + shard_bytes + 8 * num_segments(shard_bytes) + json_bytes;
}

MemorySnapshot::MemorySnapshot(std::filesystem::path path, std::int64_t shard_bytes,
                               std::int64_t json_bytes)
    : path_(std::move(path)), shard_bytes_(shard_bytes) {
  const auto file = Descriptor::to_write(path_, O_RDWR | O_CREAT);
  const auto bytes = snapshot_bytes(shard_bytes, json_bytes);
  if (::fchmod(file.get(), 0600) != 0)
    fail(ExitCode::io_failure, "cannot set the mode of {}: {}", path_.string(),
         std::strerror(errno));
  take_memory(file, bytes);
  void* at = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_POPULATE, file.get(), 0);
  validate(at != MAP_FAILED, "cannot map {} bytes of {}: {}", bytes, path_.string(),
           std::strerror(errno));
  bytes_ = {static_cast<std::byte*>(at), static_cast<std::size_t>(bytes)};
}

MemorySnapshot::~MemorySnapshot() {
  if (!bytes_.empty() && std::uncaught_exceptions() == 0) ::munmap(bytes_.data(), bytes_.size());
}

MemorySnapshot::MemorySnapshot(MemorySnapshot&& other) noexcept
    : path_(std::move(other.path_)),
      shard_bytes_(other.shard_bytes_),
      bytes_(std::exchange(other.bytes_, {})) {}

std::optional<SnapshotHeader> MemorySnapshot::read_header(const std::filesystem::path& path) {
  const auto found = read_sealed(path);
  const bool valid = found && problem_of(found->header, found->file_bytes).empty();
  return valid ? std::optional(found->header) : std::nullopt;
}

std::string MemorySnapshot::problem_with_header(const std::filesystem::path& path,
                                                std::uint64_t run) {
  const auto found = read_sealed(path);
  return found && found->header.run == run ? problem_of(found->header, found->file_bytes) : "";
}

std::optional<SnapshotHeader> MemorySnapshot::header() const {
  SnapshotHeader header;
  std::memcpy(&header, bytes_.data(), sizeof(header));
  const bool valid = is_sealed(header) && problem_of(header, std::ssize(bytes_)).empty() &&
                     header.key.bytes == shard_bytes_;
  return valid ? std::optional(header) : std::nullopt;
}

std::int64_t MemorySnapshot::step() const {
  const auto valid = header();
  return valid ? valid->step : -1;
}

/// The fences keep the compiler from reordering writes: a process that is killed has done a prefix
/// of them.
void MemorySnapshot::invalidate() {
  std::memset(bytes_.data(), 0, sizeof(SnapshotHeader));
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void MemorySnapshot::write_header(const SnapshotHeader& header) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(bytes_.data(), &header, sizeof(header));
}

std::byte* MemorySnapshot::shards() const {
  return bytes_.data() + header_bytes;
}

std::span<std::uint64_t> MemorySnapshot::segment_hashes() const {
  return {reinterpret_cast<std::uint64_t*>(shards() + shard_bytes_),
          static_cast<std::size_t>(num_segments(shard_bytes_))};
}

std::span<const std::byte> MemorySnapshot::segment(std::size_t index) const {
  const std::span all(shards(), static_cast<std::size_t>(shard_bytes_));
  const auto begin = index * static_cast<std::size_t>(snapshot_segment_bytes);
  return all.subspan(begin, std::min<std::size_t>(snapshot_segment_bytes, all.size() - begin));
}

std::span<std::byte> MemorySnapshot::body(std::int64_t json_bytes) const {
  return bytes_.subspan(header_bytes, static_cast<std::size_t>(
                                          snapshot_bytes(shard_bytes_, json_bytes) - header_bytes));
}

/// Hashes the hashes of the segments and the JSON, which follows them.
std::uint64_t MemorySnapshot::contents_hash(std::int64_t json_bytes) const {
  const auto hashes = segment_hashes();
  return hash_of(hashes.data(), hashes.size_bytes() + static_cast<std::size_t>(json_bytes));
}

void MemorySnapshot::fill(const State& state, const std::string& text, SnapshotHeader header) {
  expects(header.key.bytes == shard_bytes_ &&
              snapshot_bytes(shard_bytes_, std::ssize(text)) <= std::ssize(bytes_),
          "{} has no room for {} bytes and {} bytes of JSON", path_.string(), header.key.bytes,
          text.size());
  invalidate();
  const auto hashes = segment_hashes();
  std::size_t hashed = 0;
  const auto hash_below = [&](std::int64_t end) {  // while the segment is in the cache
    for (; static_cast<std::int64_t>(hashed + 1) * snapshot_segment_bytes <= end; ++hashed)
      hashes[hashed] = hash_of(segment(hashed).data(), segment(hashed).size());
  };
  for (const auto& group : state.groups) device::stream_of(group.memory).record().wait();
  ShardDownload download;
  for_each_shard_part(state, [&](std::int64_t at, const Tensor& part, device::MemoryKind memory) {
    hash_below(at);
    download(shards() + at, part, memory);
  });
  for (; hashed < hashes.size(); ++hashed)
    hashes[hashed] = hash_of(segment(hashed).data(), segment(hashed).size());
  std::memcpy(hashes.data() + hashes.size(), text.data(), text.size());
  header.json_bytes = std::ssize(text);
  header.contents_hash = contents_hash(header.json_bytes);
  header.hash = header.expected_hash();
  write_header(header);
}

bool MemorySnapshot::is_intact() const {
  const auto valid = header();
  if (!valid || contents_hash(valid->json_bytes) != valid->contents_hash) return false;
  const auto hashes = segment_hashes();
  for (std::size_t i = 0; i < hashes.size(); ++i)
    if (hash_of(segment(i).data(), segment(i).size()) != hashes[i]) return false;
  return true;
}

TrainState MemorySnapshot::progress() const {
  const auto valid = header();
  expects(valid.has_value(), "{} is not a valid snapshot", path_.string());
  const auto hashes = segment_hashes();
  auto progress = parse_train_state({reinterpret_cast<const char*>(hashes.data() + hashes.size()),
                                     static_cast<std::size_t>(valid->json_bytes)});
  if (progress.step != valid->step)
    fail(ExitCode::io_failure, "its header says step {}, its JSON step {}", valid->step,
         progress.step);
  return progress;
}

void MemorySnapshot::load(const State& state) const {
  for_each_shard_part(state, [&](std::int64_t at, const Tensor& part, device::MemoryKind memory) {
    device::upload(device::stream_of(memory), part, shards() + at);
  });
}

}  // namespace llamesh::checkpoint
