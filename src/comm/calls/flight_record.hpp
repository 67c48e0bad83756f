#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <type_traits>

#include "comm/calls/collective_call.hpp"
#include "comm/calls/members.hpp"

namespace llamesh::comm {

/// A collective that this rank was asked for. Times are nanoseconds since 1970, 0: not yet.
struct FlightEntry : CollectiveCall {
  std::int64_t ticket = 0;  ///< in the order in which they were asked for, from 1; 0: no entry
  std::int64_t asked = 0;
  std::int64_t started = 0;
  std::int64_t finished = 0;

  bool in_progress() const { return started != 0 && finished == 0; }
};

/// How a rank ended by itself, for a start that could not write it to the run folder.
struct RankEnd {
  std::int32_t exit_code = -1;     ///< -1: it did not, or not yet
  std::int32_t culprit = -1;       ///< the rank to blame; -1: none
  std::array<char, 8> kind{};      ///< as in failure.json: "error"
  std::array<char, 64> host{};     ///< of the culprit
  std::array<char, 512> detail{};  ///< one line; empty: another rank reports
};

/// What a rank did last: a file's bytes, so that it can be read after the process was killed.
struct FlightImage {
  static constexpr std::size_t max_records = 1000;
  static constexpr std::uint64_t known_layout = 0x33'54'48'47'49'4c'46'00;  // "FLIGHT3" and version

  std::uint64_t layout = known_layout;
  std::int64_t job = 0;       ///< when the start began, the same on all ranks
  std::int64_t alive_at = 0;  ///< the watchdog's thread last ran
  std::int64_t step = 0;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::int32_t activity = 0;       ///< Activity
  std::uint32_t stop_signals = 0;  ///< received so far, bit n: signal n
  std::array<char, 64> host{};
  std::array<char, 64> next_host{};  ///< of the next rank, in case that its record is lost
  RankEnd end;
  std::array<FlightEntry, max_records> records{};  ///< by ticket modulo their number
};
static_assert(std::is_trivially_copyable_v<FlightImage>);

/// Why a rank ends; the fields are those of RankEnd.
struct CauseOfEnd {
  std::string_view kind = {};
  int culprit = -1;
  std::string_view host = {};
  std::string_view detail = {};
};

enum class Traced : bool { no, yes };

/// The flight record of this process: what it is doing and its last 1,000 collectives. Until
/// keep_in() it is in this process's memory alone. Its functions take a lock and allocate nothing,
/// but for keep_in(). Any thread.
class FlightRecorder {
 public:
  static FlightRecorder& instance();

  /// Returns the ticket of a collective that is asked for now.
  std::int64_t asked(const Members& members, const CollectiveCall& call);
  void started(std::int64_t ticket, std::int64_t number);
  void finished(std::int64_t ticket, Traced traced = Traced::yes);
  /// Traces a GPU's collective while the host queues it, from `since` (Trace::now()) until now.
  void trace_queued(std::int64_t ticket, std::int64_t number, std::int64_t since);
  struct Doing {
    std::int32_t activity;  ///< Activity
    std::int64_t step;
  };
  void set_activity(std::int32_t activity, std::int64_t step);
  Doing activity() const;
  /// The watchdog's thread runs.
  void tick();
  /// The process ends by itself. The first exit code counts, and the first cause with a `detail`.
  void end(int exit_code, const CauseOfEnd& cause = {});

  /// Who writes the record.
  struct Owner {
    int rank = 0;
    int world_size = 1;
    std::int64_t job = 0;
    std::string_view host;
    std::string_view next_host;
  };
  /// Moves the record into a new file of this path, in a memory file system: it survives the
  /// process. False where that has no room or cannot be written.
  bool keep_in(const std::filesystem::path& file, const Owner& owner);
  /// The record is this process's own memory again; the file stays.
  void release();

  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

 private:
  FlightRecorder();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llamesh::comm
