#pragma once

#include <filesystem>
#include <optional>

#include "comm/communicator.hpp"
#include "comm/flight_record.hpp"
#include "comm/topology.hpp"
#include "train/job/failure.hpp"

namespace llamesh::train {

/// Where this rank's flight record is kept while the run lives: in the memory of its node
/// (/dev/shm), where it survives the process and where writing it never waits for a disk. When the
/// job finds a fault itself each rank copies its own to <run folder>/flight; what killed ranks have
/// left is copied there by the next start on their node.
///
/// A record is an aid: what cannot be written is left out, with a warning.
class FlightFiles {
 public:
  /// Collects what an earlier start has left on this node, and starts this one's record. The run
  /// folder exists and is this job's. Collective.
  FlightFiles(const comm::Communicator& world, const comm::Topology& topology,
              const std::filesystem::path& run_folder);
  /// Removes this rank's record; when an exception unwinds, moves it to the run folder instead. If
  /// that cannot be written, the record stays for the next start.
  ~FlightFiles();
  FlightFiles(const FlightFiles&) = delete;
  FlightFiles& operator=(const FlightFiles&) = delete;

  /// Moves this rank's record to its run folder, before the process ends. Any thread; nothing
  /// without a record.
  static void dump() noexcept;

 private:
  std::filesystem::path own_;  ///< empty: no file
};

/// <run folder>/flight: what the ranks of the newest fault have left.
std::filesystem::path flight_folder(const std::filesystem::path& run_folder);

/// The verdict by the records in the run folder. Those that are no records are left out.
std::optional<Failure> read_failure(const std::filesystem::path& run_folder);

/// Renames the folder of the records to flight.1, in place of an older one.
void put_records_aside(const std::filesystem::path& run_folder);

}  // namespace llamesh::train
