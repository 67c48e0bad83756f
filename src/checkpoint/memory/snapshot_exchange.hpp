#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "checkpoint/memory/memory_snapshot.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/transports/messages.hpp"

namespace llamesh::checkpoint {

/// Exchange of snapshots among ranks. Borrows the snapshots. Any two ranks must add the snapshots
/// between them in the same order.
class SnapshotExchange {
 public:
  /// Adds a valid snapshot to send.
  void send(const MemorySnapshot& snapshot, int to);
  /// Adds a snapshot to receive, with JSON of this size. It is invalid until run() has ended.
  void receive(MemorySnapshot& snapshot, std::int64_t json_bytes, int from);
  /// Sends and receives. Every rank in the group calls it.
  void run(const comm::Communicator& group, const char* purpose);

 private:
  std::deque<SnapshotHeader> headers_;  // messages refer to them
  std::vector<comm::OutgoingMessage> outgoing_;
  std::vector<comm::IncomingMessage> incoming_;
  std::vector<std::pair<MemorySnapshot*, const SnapshotHeader*>> received_;
};

}  // namespace llamesh::checkpoint
