#include "comm/calls/flight_record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <utility>

#include "core/process.hpp"
#include "core/trace.hpp"

namespace llamesh::comm {
namespace {

/// Traces a collective. A control-plane call goes on the lane of the thread that waits for it; any
/// other on its axis' lane.
void trace(const FlightEntry& record) {
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

/// Creates a file with the image's size and space reserved on its file system, and maps it; null on
/// failure.
FlightImage* map_new_file(const std::filesystem::path& file) {
  constexpr auto bytes = static_cast<off_t>(sizeof(FlightImage));
  ::unlink(file.c_str());
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  void* mapped = MAP_FAILED;
  // Reserve space first: writing to a page without any would kill the process.
  if (::posix_fallocate(fd, 0, bytes) == 0)
    mapped = ::mmap(nullptr, sizeof(FlightImage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (mapped != MAP_FAILED) return static_cast<FlightImage*>(mapped);
  ::unlink(file.c_str());
  return nullptr;
}

}  // namespace

struct FlightRecorder::State {
  FlightEntry* find(std::int64_t ticket) {
    auto& record = image->records[static_cast<std::size_t>(ticket) % FlightImage::max_records];
    return record.ticket == ticket ? &record : nullptr;  // a later record may have replaced it
  }

  std::mutex mutex;
  FlightImage own;
  FlightImage* image = &own;
  std::int64_t tickets = 0;
};

FlightRecorder::FlightRecorder() : state_(std::make_unique<State>()) {}

FlightRecorder& FlightRecorder::instance() {
  // Never destroyed: threads record until the process ends.
  static auto* const of_this_process = new FlightRecorder();
  return *of_this_process;
}

std::int64_t FlightRecorder::asked(const Members& members, const CollectiveCall& call) {
  const auto at = Trace::now();
  const std::lock_guard lock(state_->mutex);
  const auto ticket = ++state_->tickets;
  auto& record =
      state_->image->records[static_cast<std::size_t>(ticket) % FlightImage::max_records];
  record = {call, ticket, at, 0, 0};
  record.along(members);
  return ticket;
}

void FlightRecorder::started(std::int64_t ticket, std::int64_t number) {
  const auto at = Trace::now();
  const std::lock_guard lock(state_->mutex);
  auto* const record = state_->find(ticket);
  if (record == nullptr) return;
  record->number = number;
  record->started = at;
}

void FlightRecorder::finished(std::int64_t ticket, Traced traced) {
  const auto at = Trace::now();
  FlightEntry copy;
  {
    const std::lock_guard lock(state_->mutex);
    auto* const record = state_->find(ticket);
    if (record == nullptr) return;
    record->finished = at;
    if (Trace::on() && traced == Traced::yes) copy = *record;
  }
  if (copy.ticket != 0) trace(copy);
}

void FlightRecorder::trace_queued(std::int64_t ticket, std::int64_t number, std::int64_t since) {
  FlightEntry copy;
  {
    const std::lock_guard lock(state_->mutex);
    const auto* const record = state_->find(ticket);
    if (!Trace::on() || record == nullptr) return;
    copy = *record;
  }
  copy.number = number;
  copy.started = since;
  copy.finished = Trace::now();
  trace(copy);
}

void FlightRecorder::set_activity(std::int32_t activity, std::int64_t step) {
  const std::lock_guard lock(state_->mutex);
  state_->image->activity = activity;
  state_->image->step = step;
}

FlightRecorder::Doing FlightRecorder::activity() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->image->activity, state_->image->step};
}

void FlightRecorder::tick() {
  const auto at = Trace::now();
  const std::lock_guard lock(state_->mutex);
  state_->image->alive_at = at;
}

void FlightRecorder::end(int exit_code, const CauseOfEnd& cause) {
  const std::lock_guard lock(state_->mutex);
  auto& end = state_->image->end;
  if (end.exit_code < 0) end.exit_code = exit_code;
  if (end.detail.front() != '\0' || cause.detail.empty()) return;
  end.culprit = cause.culprit;
  set_text(end.kind, cause.kind);
  set_text(end.host, cause.host);
  set_text(end.detail, cause.detail);
}

bool FlightRecorder::keep_in(const std::filesystem::path& file, const Owner& owner) {
  FlightImage* const mapped = map_new_file(file);
  if (mapped == nullptr) return false;
  release();
  const auto at = Trace::now();
  const std::lock_guard lock(state_->mutex);
  FlightImage& image = state_->own;
  image.job = owner.job;
  image.rank = owner.rank;
  image.world_size = owner.world_size;
  image.alive_at = at;
  set_text(image.host, owner.host);
  set_text(image.next_host, owner.next_host);
  *mapped = image;
  state_->image = mapped;
  record_stop_signals_in(&mapped->stop_signals);
  return true;
}

void FlightRecorder::release() {
  const std::lock_guard lock(state_->mutex);
  if (state_->image == &state_->own) return;
  record_stop_signals_in(nullptr);
  // Except the signals, which their handler may write at any time.
  state_->own.alive_at = state_->image->alive_at;
  state_->own.activity = state_->image->activity;
  state_->own.step = state_->image->step;
  state_->own.records = state_->image->records;
  ::munmap(std::exchange(state_->image, &state_->own), sizeof(FlightImage));
}

}  // namespace llamesh::comm
