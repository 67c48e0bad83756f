#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "checkpoint/manifest.hpp"
#include "comm/communicator.hpp"
#include "core/file.hpp"

namespace llamesh::checkpoint {

/// Who hashes what is read: the reading thread, piece by piece while it is in the cache; or another
/// thread, which overlaps the hashing with the reads where there is an idle core.
enum class Hashing : bool { synchronous, asynchronous };

/// Asynchronous where each rank has at least two cores. Collective.
Hashing best_hashing(const comm::Communicator& world);

/// Reads segments of state.h5 by pread, at the offsets on which HDF5 and the manifest agree, and
/// checks their hashes. Every failure is thrown (exit 74).
class SegmentReader {
 public:
  SegmentReader(const std::filesystem::path& state_file, Hashing hashing);
  ~SegmentReader();
  SegmentReader(const SegmentReader&) = delete;
  SegmentReader& operator=(const SegmentReader&) = delete;

  /// Reads one segment; it is checked before this returns.
  void read(const DatasetEntry& entry, const Segment& segment, std::span<float> values);
  /// Reads one segment; it is checked before finish() returns. The entry and the values must stay
  /// valid until then.
  void read_ahead(const DatasetEntry& entry, const Segment& segment, std::span<float> values);
  /// Throws the error of the first damaged segment of read_ahead().
  void finish();

 private:
  class Checker;
  void read_range(const BoxRange& range, const DatasetEntry& entry, float* values);

  Descriptor file_;
  std::unique_ptr<Checker> checker_;  // with Hashing::asynchronous
};

/// Throws exit 74 unless the values are those of the segment.
void check_segment(const DatasetEntry& entry, const Segment& segment,
                   std::span<const float> values);

}  // namespace llamesh::checkpoint
