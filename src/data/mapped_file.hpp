#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "core/file.hpp"
#include "core/mapped_range.hpp"

namespace llamesh::data {

/// A whole file mapped read-only into memory; all ranks on a node share its pages. If the file is
/// truncated while mapped, reads return zeros: readers must call check() afterwards. Move-only.
class MappedFile {
 public:
  /// Throws a user error that names the file if it is missing, unreadable, empty or not a regular
  /// file.
  explicit MappedFile(const std::string& path);
  /// Maps an open file, which may be closed afterwards.
  explicit MappedFile(const Descriptor& file);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::uint8_t> bytes() const { return bytes_; }
  /// Throws if bytes read so far were missing: a user error if the file was truncated, an I/O
  /// failure if its disk cannot be read.
  void check() const {
    if (range_->lost_at() >= 0) fail_lost();
  }

 private:
  [[noreturn]] void fail_lost() const;

  std::string path_;
  std::span<const std::uint8_t> bytes_;
  std::unique_ptr<MappedRange> range_;
};

/// Loads the i-th little-endian integer, which may be unaligned.
template <class T>
T load(const std::uint8_t* values, std::int64_t i = 0) {
  T value;
  std::memcpy(&value, values + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// Asks the kernel to read these mapped bytes soon. Otherwise a page fault may wait for megabytes
/// around it (read_ahead_kb). A hint that other systems ignore.
void read_soon(std::span<const std::uint8_t> bytes) noexcept;

}  // namespace llamesh::data
