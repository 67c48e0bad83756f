#pragma once

#include <filesystem>
#include <optional>

#include "comm/calls/flight_record.hpp"
#include "comm/mesh/topology.hpp"
#include "comm/mpi/communicator.hpp"
#include "train/records/failure.hpp"

namespace llamesh::train {

/// Files for this rank's flight record during the run. The record is in its node's memory
/// (/dev/shm), where it survives the process and writing never waits for a disk. When the job
/// itself finds a fault, each rank copies its record to <run folder>/flight. Records left by killed
/// ranks are copied there by the next launch on their node.
///
/// A record is only an aid: if it cannot be written, it is left out with a warning.
class FlightFiles {
 public:
  /// Collects records left on this node by an earlier launch, and begins a new one. The run folder
  /// must exist and belong to this job. Collective.
  FlightFiles(const comm::Communicator& world, const comm::Topology& topology,
              const std::filesystem::path& run_folder);
  /// Removes this rank's record; if an exception unwinds, moves it to the run folder instead. If
  /// that cannot be written, the record stays for the next launch.
  ~FlightFiles();
  FlightFiles(const FlightFiles&) = delete;
  FlightFiles& operator=(const FlightFiles&) = delete;

  /// Moves this rank's record to the run folder before the process ends. Any thread; does nothing
  /// without a record.
  static void dump() noexcept;

 private:
  std::filesystem::path own_;  ///< empty: no file
};

/// Returns <run folder>/flight: records from the latest fault.
std::filesystem::path flight_folder(const std::filesystem::path& run_folder);

/// Diagnoses the failure from the run folder's records. Skips files that are no records.
std::optional<Failure> read_failure(const std::filesystem::path& run_folder);

/// Renames the records' folder to flight.1, replacing an older one.
void put_records_aside(const std::filesystem::path& run_folder);

}  // namespace llamesh::train
