#pragma once

#include <cstdint>
#include <memory>

#include "comm/mesh/communicator.hpp"
#include "comm/transports/collective_call.hpp"
#include "device/stream.hpp"

namespace llamesh::comm {

/// Collectives that the host has queued on GPU streams and the GPU is not past. Each is recorded as
/// in progress (OpenCollective) from when the GPU reaches it until the GPU is past it, as two
/// events tell. Somebody must ask them: the watchdog does once per second, and each begin() for its
/// group. Nobody waits. Any thread.
class QueuedCollectives {
 public:
  static QueuedCollectives& instance();

  /// Begins to queue a collective, which the GPU has reached after `reached`. Those among the same
  /// members are queued one after another, on one stream. `ticket`: the flight record's. Returns
  /// its number among these members.
  std::int64_t begin(std::shared_ptr<const Members> members, const CollectiveCall& call,
                     std::int64_t ticket, device::Event reached);
  /// The collective is queued; the GPU is past it after `done`.
  void end(std::uint64_t members_id, std::int64_t number, device::Event done);
  /// Updates the records to where the GPU is by now.
  void poll();

  QueuedCollectives(const QueuedCollectives&) = delete;
  QueuedCollectives& operator=(const QueuedCollectives&) = delete;

 private:
  QueuedCollectives();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llamesh::comm
