#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/format/state.hpp"
#include "checkpoint/memory/snapshot_plan.hpp"

namespace llamesh::checkpoint {

/// Identity of a snapshot, at the start of its file (docs/checkpoint-format.md).
struct SnapshotHeader {
  static constexpr std::uint64_t known_layout = 0x6c6c616d656d0001;

  std::uint64_t layout = known_layout;
  std::uint64_t run = 0;     ///< identity of the run
  std::uint64_t launch = 0;  ///< identity of the launch that made it
  std::int64_t step = 0;
  std::int64_t disk_step = -1;  ///< newest checkpoint on disk at that time; -1: none
  SnapshotKey key = {};
  std::int64_t json_bytes = 0;      ///< of the TrainState
  std::uint64_t contents_hash = 0;  ///< over the hashes of the shards' segments, and the JSON
  std::uint64_t hash = 0;           ///< over all above

  std::uint64_t expected_hash() const;
};

/// Default room for the TrainState's JSON in a snapshot.
inline constexpr std::int64_t snapshot_json_bytes = std::int64_t{1} << 16U;

/// Returns the bytes that a shard takes in a snapshot.
std::int64_t shard_bytes_in_snapshot(const Tensor& shard);
/// Returns the size of a snapshot's file; `shard_bytes` is for all shards.
std::int64_t snapshot_bytes(std::int64_t shard_bytes,
                            std::int64_t json_bytes = snapshot_json_bytes);

/// A mapped file in memory with the bytes of a rank's shards at a step. Its header is cleared
/// before anything changes and written last, so a torn snapshot is never valid.
///
/// While an exception unwinds, the destructor leaves the memory mapped: MPI may still write to it.
class MemorySnapshot {
 public:
  /// Opens the file, or creates it (mode 0600), and takes memory for all of it. Keeps what is in
  /// it. Throws a user error with the sizes if memory is short.
  MemorySnapshot(std::filesystem::path path, std::int64_t shard_bytes, std::int64_t json_bytes);
  ~MemorySnapshot();
  MemorySnapshot(MemorySnapshot&& other) noexcept;
  MemorySnapshot& operator=(MemorySnapshot&&) = delete;

  /// Returns the header in a file if it is valid and the file is this user's; nothing otherwise.
  /// Does not check the rest.
  static std::optional<SnapshotHeader> read_header(const std::filesystem::path& path);
  /// Returns what is wrong with the header of one of the run's snapshots whose hash is right; empty
  /// if nothing is. A torn header is not wrong: a killed save leaves one.
  static std::string problem_with_header(const std::filesystem::path& path, std::uint64_t run);

  const std::filesystem::path& path() const { return path_; }
  std::optional<SnapshotHeader> header() const;
  /// Returns the step of a valid snapshot, else -1.
  std::int64_t step() const;
  void invalidate();
  /// Writes this rank's shards, hashes and JSON, and the header with their sizes.
  void fill(const State& state, const std::string& text, SnapshotHeader header);
  /// Returns true if all bytes are as they were written. The header must be valid.
  bool is_intact() const;
  /// Returns the TrainState. Throws exit 74 if its JSON cannot be parsed or its step is not the
  /// header's. The header must be valid.
  TrainState progress() const;
  /// Copies the shards into the state, which has this snapshot's key.
  void load(const State& state) const;

  /// Returns everything after the header, to send it or, after invalidate(), to receive it.
  std::span<std::byte> body(std::int64_t json_bytes) const;
  /// Makes the snapshot valid. Call it once everything after the header has been received.
  void write_header(const SnapshotHeader& header);

 private:
  std::byte* shards() const;
  std::span<std::uint64_t> segment_hashes() const;
  std::span<const std::byte> segment(std::size_t index) const;
  std::uint64_t contents_hash(std::int64_t json_bytes) const;

  std::filesystem::path path_;
  std::int64_t shard_bytes_;
  std::span<std::byte> bytes_;  // mapped
};

}  // namespace llamesh::checkpoint
