#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "core/file.hpp"
#include "core/mapped_range.hpp"

namespace llamesh::data {

/// A whole file mapped read-only into memory; the pages are shared with every other rank of the
/// machine. Where the file is truncated while it is mapped, zeros are read: readers call check()
/// afterwards. Move-only.
class MappedFile {
 public:
  /// Throws a user error that names the file when it is missing, unreadable, empty or no regular
  /// file.
  explicit MappedFile(const std::string& path);
  /// Maps an open file, which may then be closed.
  explicit MappedFile(const Descriptor& file);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::uint8_t> bytes() const { return bytes_; }
  /// Throws when some of the bytes read so far were missing: a user error when the file was
  /// truncated, an I/O failure when its disk cannot be read.
  void check() const {
    if (range_->lost_at() >= 0) fail_lost();
  }

 private:
  [[noreturn]] void fail_lost() const;

  std::string path_;
  std::span<const std::uint8_t> bytes_;
  std::unique_ptr<MappedRange> range_;
};

/// The i-th of little-endian integers that may be unaligned.
template <class T>
T load(const std::uint8_t* values, std::int64_t i = 0) {
  T value;
  std::memcpy(&value, values + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// Asks the system to read these bytes of a mapped file soon. Page faults without it may wait for
/// megabytes around them (read_ahead_kb). A hint, which other systems ignore.
void read_soon(std::span<const std::uint8_t> bytes) noexcept;

}  // namespace llamesh::data
