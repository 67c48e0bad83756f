#include "checkpoint/memory/snapshot_exchange.hpp"

#include <span>

#include "core/error.hpp"

namespace llamesh::checkpoint {

void SnapshotExchange::send(const MemorySnapshot& snapshot, int to) {
  const auto header = snapshot.header();
  expects(header.has_value(), "{} is not a valid snapshot to send", snapshot.path().string());
  headers_.push_back(*header);
  outgoing_.push_back({to, std::as_bytes(std::span(&headers_.back(), 1))});
  outgoing_.push_back({to, snapshot.body(header->json_bytes)});
}

void SnapshotExchange::receive(MemorySnapshot& snapshot, std::int64_t json_bytes, int from) {
  snapshot.invalidate();
  headers_.emplace_back();
  incoming_.push_back({from, std::as_writable_bytes(std::span(&headers_.back(), 1))});
  incoming_.push_back({from, snapshot.body(json_bytes)});
  received_.emplace_back(&snapshot, &headers_.back());
}

void SnapshotExchange::run(const comm::Communicator& group, const char* purpose) {
  comm::exchange_messages(group, outgoing_, incoming_, purpose);
  for (const auto& [snapshot, header] : received_) snapshot->write_header(*header);
}

}  // namespace llamesh::checkpoint
