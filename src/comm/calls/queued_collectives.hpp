#pragma once

#include <cstdint>
#include <memory>

#include "comm/calls/collective_call.hpp"
#include "comm/calls/members.hpp"
#include "device/stream.hpp"

namespace llamesh::comm {

/// Collectives that the host has queued on GPU streams and the GPU has not completed. Each is
/// recorded as in progress (OpenCollective) from when the GPU reaches it until it completes, as two
/// events show. They must be polled: the watchdog does so once per second, and begin() for its
/// group. Nothing blocks. Any thread.
class QueuedCollectives {
 public:
  static QueuedCollectives& instance();

  /// Begins to queue a collective, which the GPU reaches at the event `reached`. Collectives among
  /// the same members are queued one after another, on one stream. `ticket`: the flight record's.
  /// Returns its number among these members.
  std::int64_t begin(std::shared_ptr<const Members> members, const CollectiveCall& call,
                     std::int64_t ticket, device::Event reached);
  /// Ends queueing a collective, which the GPU completes at the event `done`.
  void end(std::uint64_t members_id, std::int64_t number, device::Event done);
  /// Updates the records to the GPU's current progress.
  void poll();

  QueuedCollectives(const QueuedCollectives&) = delete;
  QueuedCollectives& operator=(const QueuedCollectives&) = delete;

 private:
  QueuedCollectives();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llamesh::comm
