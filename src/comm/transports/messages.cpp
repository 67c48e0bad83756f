#include "comm/transports/messages.hpp"

#include <algorithm>
#include <vector>

#include "comm/calls/flight_record.hpp"
#include "comm/mpi/mpi.hpp"

namespace llamesh::comm {
namespace {

constexpr std::size_t message_piece_bytes = std::size_t{16} << 20U;
constexpr int message_tag = 0;  // MPI keeps the order of messages between two ranks

/// Returns piece `number`; empty beyond the end.
template <class Byte>
std::span<Byte> piece_of(std::span<Byte> bytes, std::size_t number) {
  const auto begin = std::min(bytes.size(), number * message_piece_bytes);
  return bytes.subspan(begin, std::min(bytes.size() - begin, message_piece_bytes));
}

template <class Message>
std::size_t largest(std::span<const Message> messages) {
  std::size_t bytes = 0;
  for (const auto& message : messages) bytes = std::max(bytes, message.bytes.size());
  return bytes;
}

}  // namespace

/// Exchanges the first pieces of all messages, then the second ones, and so on. The ranks with the
/// fewest finished rounds wait only for ranks that have posted the same round, so some rank can
/// always go on.
void exchange_messages(const Communicator& group, std::span<const OutgoingMessage> outgoing,
                       std::span<const IncomingMessage> incoming, const char* purpose) {
  const InCollective in(group.members(), "exchange", purpose);
  const auto bytes = std::max(largest(outgoing), largest(incoming));
  std::vector<MPI_Request> requests;
  for (std::size_t round = 0; round * message_piece_bytes < bytes; ++round) {
    requests.clear();
    for (const auto& message : incoming) {
      const auto piece = piece_of(message.bytes, round);
      if (piece.empty()) continue;
      check(MPI_Irecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, message.from,
                      message_tag, native(group), &requests.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Irecv");
    }
    for (const auto& message : outgoing) {
      const auto piece = piece_of(message.bytes, round);
      if (piece.empty()) continue;
      check(MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, message.to,
                      message_tag, native(group), &requests.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Isend");
    }
    wait_all(requests, "exchange");
  }
}

}  // namespace llamesh::comm
