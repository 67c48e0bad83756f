#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "checkpoint/memory/memory_image.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/transports/messages.hpp"

namespace llamesh::checkpoint {

/// Exchange of images among ranks. Borrows the images. Any two ranks must add the images between
/// them in the same order.
class ImageExchange {
 public:
  /// Adds a valid image to send.
  void send(const MemoryImage& image, int to);
  /// Adds an image to receive, with a text of this size. It is invalid until run() has ended.
  void receive(MemoryImage& image, std::int64_t text_bytes, int from);
  /// Sends and receives. Every rank in the group calls it.
  void run(const comm::Communicator& group, const char* purpose);

 private:
  std::deque<ImageHeader> headers_;  // messages refer to them
  std::vector<comm::OutgoingMessage> outgoing_;
  std::vector<comm::IncomingMessage> incoming_;
  std::vector<std::pair<MemoryImage*, const ImageHeader*>> received_;
};

}  // namespace llamesh::checkpoint
