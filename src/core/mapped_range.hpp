#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace llamesh {

/// Mapped memory whose pages may be missing when they are accessed, which raises SIGBUS: the file
/// was truncated, its disk cannot be read, or a file system in memory is full. While an object
/// lives, the SIGBUS handler knows what the address belongs to:
/// - file: zeros are read from there on, and lost_at() reports it to the reader, which throws;
///   - shared memory: one line, and the process ends with exit 78;
///   - anything else: one line, and the process dies by the signal.
class MappedRange {
 public:
  enum class Kind { file, shared_memory };
  MappedRange(std::span<const std::byte> bytes, Kind kind);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  /// Offset of the first page of a file that was not there when it was read; -1: all were.
  std::int64_t lost_at() const noexcept;

  struct Entry;

 private:
  Entry& entry_;
};

}  // namespace llamesh
