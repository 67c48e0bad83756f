#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "checkpoint/format/manifest.hpp"
#include "comm/mpi/communicator.hpp"
#include "core/file.hpp"

namespace llamesh::checkpoint {

/// Thread that hashes the data: the reading thread, piece by piece while in cache, or another
/// thread, which overlaps hashing with reads if a core is idle.
enum class Hashing : bool { synchronous, asynchronous };

/// Returns asynchronous if each rank has at least two cores. Collective.
Hashing best_hashing(const comm::Communicator& world);

/// A reader for segments in state.h5. It uses pread at the offsets on which HDF5 and the manifest
/// agree, and checks hashes. Every failure throws (exit 74).
class SegmentReader {
 public:
  SegmentReader(const std::filesystem::path& state_file, Hashing hashing);
  ~SegmentReader();
  SegmentReader(const SegmentReader&) = delete;
  SegmentReader& operator=(const SegmentReader&) = delete;

  /// Reads one segment and checks it before returning.
  void read(const DatasetEntry& entry, const Segment& segment, std::span<float> values);
  /// Reads one segment and checks it before finish() returns. Until then the entry and the values
  /// must stay valid.
  void read_ahead(const DatasetEntry& entry, const Segment& segment, std::span<float> values);
  /// Throws the error for the first damaged segment from read_ahead().
  void finish();

 private:
  class Checker;
  void read_range(const BoxRange& range, const DatasetEntry& entry, float* values);

  Descriptor file_;
  std::unique_ptr<Checker> checker_;  // with Hashing::asynchronous
};

/// Throws exit 74 unless the values match the segment's hash.
void check_segment(const DatasetEntry& entry, const Segment& segment,
                   std::span<const float> values);

}  // namespace llamesh::checkpoint
