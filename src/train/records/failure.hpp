#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/calls/flight_record.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "core/error.hpp"

namespace llamesh::train {

/// Reason why a launch ended abnormally: the content of failure.json.
struct Failure {
  /// error: a rank reports one; lost: no heartbeat; link: two ranks cannot reach each other; late:
  /// absent from a collective; stuck: no progress; order: ranks in different collectives; slow: on
  /// a node that is left out before the first step. Set by the next launch: killed, vanished (no
  /// record for the ranks of a host), ended (all at once, nobody to blame) or unknown (the records
  /// do not show it).
  std::string kind = {};
  int rank = -1;  ///< rank to blame, the first if there are two; -1: none
  std::string host = {};
  std::string phase = {};  ///< that rank's activity: "training"
  std::int64_t step = 0;
  std::string axis = {};  ///< axis of the collective in which others wait for it; empty: none
  std::string collective = {};
  std::string unit = {};
  std::vector<int> waiting = {};
  std::string detail = {};  ///< one line

  bool operator==(const Failure&) const = default;
};

Failure failure_of(const comm::Diagnosis& diagnosis);
/// Converts an error on this rank.
Failure failure_of_error(const std::string& error);

/// Returns true if the rank that reports this error is at fault: a fault of its GPU
/// (device/cuda/devices.cpp), a replica that differs (train/step/replica_check.cpp), or a
/// micro-batch that differs when repeated, on one host (train/health/replay_check.cpp). Other
/// errors may be another rank's fault: NCCL, for example, reports that a rank is gone. Pure.
bool is_fault_of_reporter(std::string_view error);

/// Records how this rank ends in its flight record, which needs no disk. Any thread.
void note_end(ExitCode code, const Failure& failure) noexcept;

/// Diagnoses one launch from its flight records, in any order, if it could not report itself.
/// Returns nothing without records. Pure.
std::optional<Failure> failure_of_records(std::span<const comm::FlightSnapshot> records);

/// Returns <run folder>/failure.json.
std::filesystem::path failure_file(const std::filesystem::path& run_folder);
/// Serializes the failure, with the time.
std::string to_text(const Failure& failure);
/// Replaces the file. An I/O failure throws (exit 74).
void write_failure(const std::filesystem::path& run_folder, const Failure& failure);

}  // namespace llamesh::train
