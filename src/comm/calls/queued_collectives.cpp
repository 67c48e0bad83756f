#include "comm/calls/queued_collectives.hpp"

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/calls/in_collective.hpp"
#include "core/error.hpp"
#include "core/trace.hpp"

namespace llamesh::comm {
namespace {

/// Also returns false if the GPU has failed; whoever waits for its work reports that.
bool happened(const device::Event& event) {
  try {
    return event.ready();
  } catch (const Error&) {
    return false;
  }
}

struct Queued {
  std::shared_ptr<const Members> members;
  CollectiveCall call;
  std::int64_t ticket;
  std::int64_t since;  // Trace::now()
  device::Event reached;
  std::optional<device::Event> done = {};            // once it is queued
  std::unique_ptr<OpenCollective> in_progress = {};  // once the GPU has reached it
};

/// The collectives among the same members, in the order of their stream.
struct Lane {
  std::int64_t begun = 0;
  std::deque<Queued> queued;

  void poll() {
    while (!queued.empty()) {
      auto& first = queued.front();
      if (!first.in_progress) {
        if (!happened(first.reached)) return;
        first.in_progress =
            std::make_unique<OpenCollective>(first.members, first.call, first.ticket, Traced::no);
      }
      if (!first.done || !happened(*first.done)) return;
      queued.pop_front();
    }
  }
};

}  // namespace

struct QueuedCollectives::State {
  std::mutex mutex;
  std::map<std::uint64_t, Lane> lanes;  // by Members::id
};

QueuedCollectives::QueuedCollectives() : state_(std::make_unique<State>()) {}

QueuedCollectives& QueuedCollectives::instance() {
  // Never destroyed: its events may outlive main().
  static auto* const of_this_process = new QueuedCollectives();
  return *of_this_process;
}

std::int64_t QueuedCollectives::begin(std::shared_ptr<const Members> members,
                                      const CollectiveCall& call, std::int64_t ticket,
                                      device::Event reached) {
  const std::lock_guard lock(state_->mutex);
  auto& lane = state_->lanes[members->id];
  lane.poll();
  lane.queued.push_back({std::move(members), call, ticket, Trace::now(), std::move(reached)});
  return lane.queued.back().call.number = ++lane.begun;
}

void QueuedCollectives::end(std::uint64_t members_id, std::int64_t number, device::Event done) {
  const std::lock_guard lock(state_->mutex);
  auto& newest = state_->lanes[members_id].queued.back();
  expects(newest.call.number == number, "collective {} ends after collective {} has begun", number,
          newest.call.number);
  newest.done = std::move(done);
  FlightRecorder::instance().trace_queued(newest.ticket, number, newest.since);
}

void QueuedCollectives::poll() {
  const std::lock_guard lock(state_->mutex);
  for (auto& [id, lane] : state_->lanes) lane.poll();
}

}  // namespace llamesh::comm
