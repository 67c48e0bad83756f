#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/flight_record.hpp"
#include "comm/watchdog.hpp"
#include "core/error.hpp"

namespace llamesh::train {

/// Why a start ended that should not have, in parts: the content of failure.json.
struct Failure {
  /// error: a rank reports one; lost: no heartbeat; link: two ranks cannot reach each other; late:
  /// not come to a collective; stuck: no progress; order: ranks in different collectives; by the
  /// next start: killed, vanished (no record of the ranks of a host), ended (all at once, nobody to
  /// blame) or unknown (the records do not tell).
  std::string kind = {};
  int rank = -1;  ///< to blame, the first where there are two; -1: none
  std::string host = {};
  std::string phase = {};  ///< "training": what that rank was doing
  std::int64_t step = 0;
  std::string axis = {};  ///< of the collective in which others wait for it; empty: in none
  std::string collective = {};
  std::string unit = {};
  std::vector<int> waiting = {};
  std::string detail = {};  ///< one line

  bool operator==(const Failure&) const = default;
};

Failure failure_of(const comm::Verdict& verdict);
/// This rank ends with an error.
Failure failure_of_error(const std::string& error);

/// Notes in this rank's flight record, which needs no disk, how it ends. Any thread.
void note_end(ExitCode code, const Failure& failure) noexcept;

/// The verdict by the flight records that were found of one start that could not give one itself,
/// in any order. Nothing without any. Pure.
std::optional<Failure> failure_of_records(std::span<const comm::FlightImage> records);

/// <run folder>/failure.json.
std::filesystem::path failure_file(const std::filesystem::path& run_folder);
/// Its text, with the time.
std::string to_text(const Failure& failure);
/// Replaces the file. An I/O failure throws (exit 74).
void write_failure(const std::filesystem::path& run_folder, const Failure& failure);

}  // namespace llamesh::train
