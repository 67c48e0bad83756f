#include "checkpoint/memory/image_exchange.hpp"

#include <span>

#include "core/error.hpp"

namespace llamesh::checkpoint {

void ImageExchange::send(const MemoryImage& image, int to) {
  const auto header = image.header();
  expects(header.has_value(), "{} is not a valid image to send", image.path().string());
  headers_.push_back(*header);
  outgoing_.push_back({to, std::as_bytes(std::span(&headers_.back(), 1))});
  outgoing_.push_back({to, image.body(header->text_bytes)});
}

void ImageExchange::receive(MemoryImage& image, std::int64_t text_bytes, int from) {
  image.invalidate();
  headers_.emplace_back();
  incoming_.push_back({from, std::as_writable_bytes(std::span(&headers_.back(), 1))});
  incoming_.push_back({from, image.body(text_bytes)});
  received_.emplace_back(&image, &headers_.back());
}

void ImageExchange::run(const comm::Communicator& group, const char* purpose) {
  comm::exchange_messages(group, outgoing_, incoming_, purpose);
  for (const auto& [image, header] : received_) image->write_header(*header);
}

}  // namespace llamesh::checkpoint
