#include "comm/calls/flight_record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "core/process.hpp"

namespace llamesh::comm {
namespace {

/// Traces a collective. A control-plane call goes on the lane of the thread that waits for it; any
/// other on its axis' lane.
void trace(const FlightEntry& record) {
  if (!Trace::on()) return;
  TraceEvent event;
  event.start = record.started;
  event.end = record.finished;
  event.asked = record.asked;
  event.bytes = record.bytes;
  event.number = record.number;
  const std::string_view axis = record.axis.front() == '\0' ? "one rank" : record.axis.data();
  if (record.dtype.front() != '\0') set_text(event.lane, axis);
  set_text(event.axis, axis);
  set_text(event.category, "collective");
  set_text(event.name, record.kind.data());
  set_text(event.subject, record.subject.data());
  Trace::instance().add(event);
}

/// Creates a file with the snapshot's size and space reserved on its file system, and maps it; null
/// on failure.
FlightSnapshot* map_new_file(const std::filesystem::path& file) {
  constexpr auto bytes = static_cast<off_t>(sizeof(FlightSnapshot));
  ::unlink(file.c_str());
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  void* mapped = MAP_FAILED;
  // Reserve space first: writing to a page without any would kill the process.
  if (::posix_fallocate(fd, 0, bytes) == 0)
    mapped = ::mmap(nullptr, sizeof(FlightSnapshot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (mapped != MAP_FAILED) return static_cast<FlightSnapshot*>(mapped);
  ::unlink(file.c_str());
  return nullptr;
}

/// Returns true if the GPU has reached the event. Returns false if it has failed: whoever waits for
/// its work reports that.
bool happened(const device::Event& event) {
  try {
    return event.ready();
  } catch (const Error&) {
    return false;
  }
}

/// A collective that the host queues on a GPU and the GPU has not completed.
struct Queued {
  RecordedCollective collective;
  device::Event reached;
  std::optional<device::Event> done = {};  // once the host has queued it
};

/// Collectives among the same members, in the order of their stream.
using GroupQueue = std::deque<Queued>;

TraceRange range_of(const RecordedCollective& one) {
  return {one.call.kind.data(), one.call.subject.data(), one.members->name};
}

}  // namespace

struct FlightRecorder::State {
  FlightEntry& slot(std::int64_t ticket) {
    return snapshot->records[static_cast<std::size_t>(ticket) % FlightSnapshot::max_records];
  }
  /// Updates a call's entry, unless a later call has replaced it. Under the lock.
  void update(const FlightEntry& call) {
    auto& entry = slot(call.ticket);
    if (entry.ticket != call.ticket) return;
    entry.number = call.number;
    entry.started = call.started;
    entry.finished = call.finished;
  }
  /// Gives a collective without number its group's next one. `one` does not move until leave().
  void enter(RecordedCollective& one) {
    const auto at = Trace::now();
    const auto since = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex);
    auto& newest = entered[one.members->id];
    newest = one.call.number == 0 ? newest + 1 : one.call.number;
    one.call.number = newest;
    one.call.started = at;
    one.since = since;
    in_progress.push_back(&one);
    update(one.call);
  }
  void leave(RecordedCollective& one) {
    const auto at = Trace::now();
    const std::lock_guard lock(mutex);
    one.call.finished = at;
    std::erase(in_progress, &one);
    update(one.call);
  }
  /// Updates a group's collectives to the GPU's progress. Under the queues' lock.
  void poll(GroupQueue& queue) {
    while (!queue.empty()) {
      auto& [one, reached, done] = queue.front();
      if (one.call.started == 0) {
        if (!happened(reached)) return;
        enter(one);
      }
      if (!done || !happened(*done)) return;
      leave(one);
      queue.pop_front();
    }
  }

  std::mutex mutex;
  FlightSnapshot own;
  FlightSnapshot* snapshot = &own;
  std::int64_t tickets = 0;
  std::vector<const RecordedCollective*> in_progress;       // in InCollectives and in queues
  std::unordered_map<std::uint64_t, std::int64_t> entered;  // newest number by Members::id
  std::unordered_map<std::uint64_t, std::vector<CollectiveCall>> calls;  // likewise, on request

  // Taken before `mutex`. Queues have their own lock because it is held in calls to the GPU's
  // driver. If the driver hangs, threads must still be able to record, and to report why the
  // process ends.
  std::mutex queues_mutex;
  std::map<std::uint64_t, GroupQueue> queues;  // by Members::id
};

FlightRecorder::FlightRecorder() : state_(std::make_unique<State>()) {}

FlightRecorder& FlightRecorder::instance() {
  // Never destroyed: threads record until the process ends.
  static auto* const of_this_process = new FlightRecorder();
  return *of_this_process;
}

RecordedCollective FlightRecorder::ask(std::shared_ptr<const Members> members,
                                       const CollectiveCall& call) {
  RecordedCollective one{std::move(members), {call}};
  one.call.along(*one.members);
  one.call.asked = Trace::now();
  const std::lock_guard lock(state_->mutex);
  one.call.ticket = ++state_->tickets;
  state_->slot(one.call.ticket) = one.call;
  if (const auto kept = state_->calls.find(one.call.group); kept != state_->calls.end())
    kept->second.push_back(one.call);
  return one;
}

void FlightRecorder::queue(const RecordedCollective& asked, device::Stream& stream,
                           const std::function<void()>& work) {
  const auto range = range_of(asked);
  const auto id = asked.members->id;
  auto reached = stream.record();
  FlightEntry call = asked.call;  // as the host sees it: started now, finished when it is queued
  call.started = Trace::now();
  {
    const std::lock_guard lock(state_->queues_mutex);
    auto& queue = state_->queues[id];
    state_->poll(queue);
    call.number = 1 + (queue.empty() ? entered(id) : queue.back().collective.call.number);
    queue.push_back({asked, std::move(reached)});
    queue.back().collective.call.number = call.number;
  }
  work();
  auto done = stream.record();
  {
    const std::lock_guard lock(state_->queues_mutex);
    auto& newest = state_->queues[id].back();
    expects(newest.collective.call.ticket == call.ticket,
            "collective {} ends after collective {} has begun", call.number,
            newest.collective.call.number);
    newest.done = std::move(done);
  }
  call.finished = Trace::now();
  trace(call);
}

void FlightRecorder::poll_queued() {
  const std::lock_guard lock(state_->queues_mutex);
  for (auto& [id, queue] : state_->queues) state_->poll(queue);
}

std::vector<RecordedCollective> FlightRecorder::in_progress() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<RecordedCollective> all;
  all.reserve(state_->in_progress.size());
  for (const auto* one : state_->in_progress) all.push_back(*one);
  return all;
}

std::int64_t FlightRecorder::entered(std::uint64_t members_id) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->entered.find(members_id);
  return found == state_->entered.end() ? 0 : found->second;
}

void FlightRecorder::keep_calls(std::uint64_t members_id) {
  const std::lock_guard lock(state_->mutex);
  state_->calls.try_emplace(members_id);
}

std::vector<CollectiveCall> FlightRecorder::take_calls(std::uint64_t members_id) {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->calls.at(members_id), {});
}

void FlightRecorder::set_activity(std::int32_t activity, std::int64_t step) {
  const std::lock_guard lock(state_->mutex);
  state_->snapshot->activity = activity;
  state_->snapshot->step = step;
}

FlightRecorder::Doing FlightRecorder::activity() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->snapshot->activity, state_->snapshot->step};
}

void FlightRecorder::tick() {
  const auto at = Trace::now();
  const std::lock_guard lock(state_->mutex);
  state_->snapshot->alive_at = at;
}

void FlightRecorder::end(int exit_code, const CauseOfEnd& cause) {
  const std::lock_guard lock(state_->mutex);
  auto& end = state_->snapshot->end;
  if (end.exit_code < 0) end.exit_code = exit_code;
  if (end.detail.front() != '\0' || cause.detail.empty()) return;
  end.faulty_rank = cause.faulty_rank;
  set_text(end.kind, cause.kind);
  set_text(end.host, cause.host);
  set_text(end.detail, cause.detail);
}

bool FlightRecorder::keep_in(const std::filesystem::path& file, const Owner& owner) {
  FlightSnapshot* const mapped = map_new_file(file);
  if (mapped == nullptr) return false;
  release();
  const auto at = Trace::now();
  const std::lock_guard lock(state_->mutex);
  FlightSnapshot& snapshot = state_->own;
  snapshot.job = owner.job;
  snapshot.rank = owner.rank;
  snapshot.world_size = owner.world_size;
  snapshot.alive_at = at;
  set_text(snapshot.host, owner.host);
  set_text(snapshot.next_host, owner.next_host);
  *mapped = snapshot;
  state_->snapshot = mapped;
  record_stop_signals_in(&mapped->stop_signals);
  return true;
}

void FlightRecorder::release() {
  const std::lock_guard lock(state_->mutex);
  if (state_->snapshot == &state_->own) return;
  record_stop_signals_in(nullptr);
  // Everything but the signals, which their handler may write at any time.
  state_->own.alive_at = state_->snapshot->alive_at;
  state_->own.activity = state_->snapshot->activity;
  state_->own.step = state_->snapshot->step;
  state_->own.records = state_->snapshot->records;
  ::munmap(std::exchange(state_->snapshot, &state_->own), sizeof(FlightSnapshot));
}

InCollective::InCollective(RecordedCollective asked)
    : entered_(std::move(asked)), range_(range_of(entered_)) {
  FlightRecorder::instance().state_->enter(entered_);
}

InCollective::~InCollective() {
  FlightRecorder::instance().state_->leave(entered_);
  trace(entered_.call);
}

}  // namespace llamesh::comm
