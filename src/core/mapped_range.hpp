#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace llamesh {

/// Mapped memory whose pages may be missing on access, which raises SIGBUS: the file was truncated,
/// its disk cannot be read, or an in-memory file system is full. While this object lives, the
/// SIGBUS handler knows what the address belongs to:
/// - file: the rest reads as zeros, and lost_at() tells the reader, which throws;
/// - shared memory: prints one line and exits with 78;
/// - anything else: prints one line and dies by the signal.
class MappedRange {
 public:
  enum class Kind { file, shared_memory };
  MappedRange(std::span<const std::byte> bytes, Kind kind);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  /// Returns the file offset of the first page that was missing when read, or -1.
  std::int64_t lost_at() const noexcept;

  struct Entry;

 private:
  Entry& entry_;
};

}  // namespace llamesh
