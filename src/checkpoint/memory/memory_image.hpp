#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/format/state.hpp"
#include "checkpoint/memory/image_plan.hpp"

namespace llamesh::checkpoint {

/// Identity of an image, at the start of its file (docs/checkpoint-format.md).
struct ImageHeader {
  static constexpr std::uint64_t known_layout = 0x6c6c616d656d0001;

  std::uint64_t layout = known_layout;
  std::uint64_t run = 0;    ///< identity of the run
  std::uint64_t start = 0;  ///< identity of the start that made it
  std::int64_t step = 0;
  std::int64_t disk_step = -1;  ///< newest checkpoint on disk at that time; -1: none
  ImageKey key = {};
  std::int64_t text_bytes = 0;      ///< of the TrainState
  std::uint64_t contents_hash = 0;  ///< over the hashes of the shards' segments, and the text
  std::uint64_t hash = 0;           ///< over all above

  std::uint64_t expected_hash() const;
};

/// Default room for the TrainState's text in an image.
inline constexpr std::int64_t image_text_bytes = std::int64_t{1} << 16U;

/// Returns the bytes that a shard takes in an image.
std::int64_t shard_bytes_in_image(const Tensor& shard);
/// Returns the size of an image's file; `shard_bytes` is for all shards.
std::int64_t image_bytes(std::int64_t shard_bytes, std::int64_t text_bytes = image_text_bytes);

/// A mapped file in memory with the bytes of a rank's shards at a step. Its header is cleared
/// before anything changes and written last, so a torn image is never valid.
///
/// While an exception unwinds, the destructor leaves the memory mapped: MPI may still write to it.
class MemoryImage {
 public:
  /// Opens the file, or creates it (mode 0600), and takes memory for all of it. Keeps what is in
  /// it. Throws a user error with the sizes if memory is short.
  MemoryImage(std::filesystem::path path, std::int64_t shard_bytes, std::int64_t text_bytes);
  ~MemoryImage();
  MemoryImage(MemoryImage&& other) noexcept;
  MemoryImage& operator=(MemoryImage&&) = delete;

  /// Returns the header in a file if it is valid and the file is this user's; nothing otherwise.
  /// Does not check the rest.
  static std::optional<ImageHeader> read_header(const std::filesystem::path& path);
  /// Returns what is wrong with the header of one of the run's images whose hash is right; empty if
  /// nothing is. A torn header is not wrong: a killed save leaves one.
  static std::string problem_with_header(const std::filesystem::path& path, std::uint64_t run);

  const std::filesystem::path& path() const { return path_; }
  std::optional<ImageHeader> header() const;
  /// Returns the step of a valid image, else -1.
  std::int64_t step() const;
  void invalidate();
  /// Writes this rank's shards, hashes and text, and the header with their sizes.
  void fill(const State& state, const std::string& text, ImageHeader header);
  /// Returns true if all bytes are as they were written. The header must be valid.
  bool is_intact() const;
  /// Returns the TrainState. Throws exit 74 if its text cannot be understood or its step is not the
  /// header's. The header must be valid.
  TrainState progress() const;
  /// Copies the shards into the state, which has this image's key.
  void load(const State& state) const;

  /// Returns everything after the header, to send it or, after invalidate(), to receive it.
  std::span<std::byte> body(std::int64_t text_bytes) const;
  /// Makes the image valid. Call it once everything after the header has been received.
  void write_header(const ImageHeader& header);

 private:
  std::byte* shards() const;
  std::span<std::uint64_t> segment_hashes() const;
  std::span<const std::byte> segment(std::size_t index) const;
  std::uint64_t contents_hash(std::int64_t text_bytes) const;

  std::filesystem::path path_;
  std::int64_t shard_bytes_;
  std::span<std::byte> bytes_;  // mapped
};

}  // namespace llamesh::checkpoint
