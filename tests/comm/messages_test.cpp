#include "comm/transports/messages.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support.hpp"

namespace llamesh::test {
namespace {

/// Returns bytes that are unique to this message between these ranks.
std::vector<std::byte> message_bytes(int from, int to, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] =
        static_cast<std::byte>((i * 31 + i / 4096 + static_cast<std::size_t>(7 * from + to)) % 251);
  return bytes;
}

TEST(Messages, OfAnySizeArriveFromAllRanks) {
  constexpr std::size_t piece = std::size_t{16} << 20U;
  const std::vector<std::size_t> sizes{8, 0, piece + 3, 1};
  std::vector<std::vector<std::byte>> sent, received;
  std::vector<comm::OutgoingMessage> outgoing;
  std::vector<comm::IncomingMessage> incoming;
  const int me = world().rank();
  for (int peer = 0; peer < world().size(); ++peer) {
    if (peer == me) continue;
    for (const auto size : sizes) {
      sent.push_back(message_bytes(me, peer, size));
      outgoing.push_back({peer, sent.back()});
      received.emplace_back(size);
      incoming.push_back({peer, received.back()});
    }
  }
  exchange_messages(world(), outgoing, incoming, "a test");
  for (std::size_t i = 0; i < received.size(); ++i)
    EXPECT_EQ(received[i], message_bytes(incoming[i].from, me, received[i].size()));
}

TEST(Messages, ARankWithoutAnyPassesTheOthers) {
  const int last = world().size() - 1;
  if (last < 2) return;
  auto bytes = message_bytes(0, last, 1000);
  std::vector<comm::OutgoingMessage> outgoing;
  std::vector<comm::IncomingMessage> incoming;
  if (world().rank() == 0) outgoing.push_back({last, bytes});
  if (world().rank() == last) {
    bytes.assign(1000, std::byte{0});
    incoming.push_back({0, bytes});
  }
  exchange_messages(world(), outgoing, incoming, "a test");
  EXPECT_EQ(bytes, message_bytes(0, last, 1000));
}

}  // namespace
}  // namespace llamesh::test
