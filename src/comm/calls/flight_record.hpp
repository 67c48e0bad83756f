#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/calls/collective_call.hpp"
#include "comm/calls/members.hpp"
#include "core/trace.hpp"
#include "device/stream.hpp"

namespace llamesh::comm {

/// A collective in the flight record. Times are nanoseconds since 1970, 0: not yet.
struct FlightEntry : CollectiveCall {
  std::int64_t ticket = 0;  ///< in the order in which they were asked for, from 1; 0: no entry
  std::int64_t asked = 0;
  std::int64_t started = 0;
  std::int64_t finished = 0;

  bool in_progress() const { return started != 0 && finished == 0; }
};

/// End of a rank that ended by itself, for a launch that could not write it to the run folder.
struct RankEnd {
  std::int32_t exit_code = -1;     ///< -1: has not ended by itself
  std::int32_t faulty_rank = -1;   ///< the rank to blame; -1: none
  std::array<char, 8> kind{};      ///< as in failure.json: "error"
  std::array<char, 64> host{};     ///< of the faulty rank
  std::array<char, 512> detail{};  ///< one line; empty: another rank reports
};

/// Snapshot of what a rank did last. It is a file's bytes, so it can be read after the process was
/// killed.
struct FlightSnapshot {
  static constexpr std::size_t max_records = 1000;
  static constexpr std::uint64_t known_layout = 0x33'54'48'47'49'4c'46'00;  // "FLIGHT3" and version

  std::uint64_t layout = known_layout;
  std::int64_t job = 0;       ///< when the launch began, the same on all ranks
  std::int64_t alive_at = 0;  ///< the watchdog's thread last ran
  std::int64_t step = 0;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::int32_t activity = 0;       ///< Activity
  std::uint32_t stop_signals = 0;  ///< received so far, bit n: signal n
  std::array<char, 64> host{};
  std::array<char, 64> next_host{};  ///< of the next rank, in case its record is lost
  RankEnd end;
  std::array<FlightEntry, max_records> records{};  ///< by ticket modulo their number
};
static_assert(std::is_trivially_copyable_v<FlightSnapshot>);

/// Reason for which a rank ends; the fields are those of RankEnd.
struct CauseOfEnd {
  std::string_view kind = {};
  int faulty_rank = -1;
  std::string_view host = {};
  std::string_view detail = {};
};

/// A collective that this rank was asked for, as FlightRecorder::ask() returns it.
struct RecordedCollective {
  std::shared_ptr<const Members> members;
  FlightEntry call;
  /// When a thread or the GPU entered it.
  std::chrono::steady_clock::time_point since = {};
};

/// Flight recorder of this process: what it is doing, and every collective from its call to its
/// end, on any thread or on the GPU. The hang diagnosis reads the collectives in progress,
/// debug.contract the calls since its last check, and a profiled step traces those that finish. The
/// last 1,000 stay in a FlightSnapshot, which is this process's memory until keep_in() makes it a
/// file.
///
/// Recording takes a lock. Unless the collective is the first in its group or is queued on a GPU,
/// it allocates nothing. Any thread.
class FlightRecorder {
 public:
  static FlightRecorder& instance();

  /// Records that a collective is asked for now. The caller then enters it (InCollective) or queues
  /// it on a GPU.
  RecordedCollective ask(std::shared_ptr<const Members> members, const CollectiveCall& call);
  /// Runs `work`, which queues a collective on a GPU's stream. Events before and after it show when
  /// the GPU reaches and completes it; in between, it is in progress. The events must be polled:
  /// the watchdog does so once per second, and queue() for its group. Never blocks. Collectives
  /// among the same members are queued one after another, on one stream.
  void queue(const RecordedCollective& asked, device::Stream& stream,
             const std::function<void()>& work);
  /// Updates queued collectives to the GPU's current progress.
  void poll_queued();

  /// Returns the collectives on all threads and on the GPU, earliest first. Numbers are the same on
  /// all ranks in a group.
  std::vector<RecordedCollective> in_progress() const;
  /// Returns how many collectives with these members this process has entered so far.
  std::int64_t entered(std::uint64_t members_id) const;
  /// Starts keeping all calls with these members, for take_calls(). Each one then allocates.
  void keep_calls(std::uint64_t members_id);
  /// Returns the calls asked for since keep_calls() or the last take_calls(), in order.
  std::vector<CollectiveCall> take_calls(std::uint64_t members_id);

  struct Doing {
    std::int32_t activity;  ///< Activity
    std::int64_t step;
  };
  void set_activity(std::int32_t activity, std::int64_t step);
  Doing activity() const;
  /// Records that the watchdog's thread is running.
  void tick();
  /// Records that the process ends by itself. The first exit code counts, and the first cause with
  /// a `detail`.
  void end(int exit_code, const CauseOfEnd& cause = {});

  /// Process that writes the record.
  struct Owner {
    int rank = 0;
    int world_size = 1;
    std::int64_t job = 0;
    std::string_view host;
    std::string_view next_host;
  };
  /// Moves the record into a new file in a memory file system, which survives the process. Returns
  /// false if the file system has no room or the file cannot be written.
  bool keep_in(const std::filesystem::path& file, const Owner& owner);
  /// Moves the record back into this process's memory; the file stays.
  void release();

  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

 private:
  friend class InCollective;
  FlightRecorder();
  struct State;
  std::unique_ptr<State> state_;
};

/// Scope in which the calling thread is in a collective. On leaving it, traces the collective.
class InCollective {
 public:
  explicit InCollective(RecordedCollective asked);
  /// Asks for a control-plane call and enters it, for this purpose or "".
  InCollective(const std::shared_ptr<const Members>& members, const char* kind, const char* purpose)
      : InCollective(FlightRecorder::instance().ask(members, CollectiveCall::of(kind, purpose))) {}
  ~InCollective();
  InCollective(const InCollective&) = delete;
  InCollective& operator=(const InCollective&) = delete;

 private:
  RecordedCollective entered_;
  TraceRange range_;
};

}  // namespace llamesh::comm
