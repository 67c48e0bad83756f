#pragma once

#include <cstddef>
#include <span>

#include "comm/mpi/communicator.hpp"

namespace llamesh::comm {

/// Bytes for another rank in a group.
struct OutgoingMessage {
  int to;
  std::span<const std::byte> bytes;
};

/// Room for bytes from another rank in a group.
struct IncomingMessage {
  int from;
  std::span<std::byte> bytes;
};

/// Sends and receives large messages of host memory, in pieces of bounded size and all at the same
/// time. Every rank in the group calls it, with messages or without. Two ranks must list the
/// messages between them in the same order, with equal sizes. The memory must stay valid until it
/// returns or the process ends. `purpose` is as in Communicator.
void exchange_messages(const Communicator& group, std::span<const OutgoingMessage> outgoing,
                       std::span<const IncomingMessage> incoming, const char* purpose);

}  // namespace llamesh::comm
