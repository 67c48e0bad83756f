#include "comm/transports/node_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "comm/transports/host_reduce.hpp"

namespace llamesh::comm {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

std::vector<const std::byte*> moved(const std::vector<std::byte*>& from, std::int64_t bytes) {
  std::vector<const std::byte*> to;
  for (const std::byte* address : from) to.push_back(address + bytes);
  return to;
}

}  // namespace

/// Control data shared by the ranks: a barrier, then each rank's tensor location. Double buffered,
/// since a rank may begin the next call while another still reads this call's locations.
struct NodeCollectives::Control {
  NodeBarrier barrier;

  static std::int64_t bytes(int ranks) {
    return 64 + std::int64_t{2} * ranks * static_cast<std::int64_t>(sizeof(TensorLocation));
  }
  TensorLocation* locations(std::int64_t call, int ranks) {
    auto* first = reinterpret_cast<TensorLocation*>(reinterpret_cast<std::byte*>(this) + 64);
    return first + (call % 2) * ranks;
  }
};

NodeCollectives::NodeCollectives(const Communicator& group)
    : Collectives(group),
      group_(group.duplicate()),
      messages_(group),
      control_window_(group_, Control::bytes(group.size())),
      control_(reinterpret_cast<Control*>(control_window_.data())),
      fingerprint_check_(members()) {
  static_assert(sizeof(Control) <= 64);
  if (rank() == 0) new (control_) Control;
  group_.barrier();
}

NodeCollectives::~NodeCollectives() {
  finish();
}

std::shared_ptr<SharedWindow> NodeCollectives::add_region(Kind kind, std::int64_t bytes) {
  auto window = std::make_shared<SharedWindow>(group_, bytes);
  const std::lock_guard lock(mutex_);
  regions_.push_back({window, kind});
  return window;
}

device::Buffer NodeCollectives::allocate_gathered(std::int64_t bytes_per_rank) {
  expects(bytes_per_rank % 64 == 0, "{} bytes a rank are no multiple of 64", bytes_per_rank);
  auto window = add_region(Kind::gathered, bytes_per_rank * size());
  std::byte* data = window->data();
  return {std::move(window), data, bytes_per_rank * size(), bytes_per_rank};
}

device::Buffer NodeCollectives::allocate_symmetric(std::int64_t bytes) {
  const std::int64_t stride = round_up(bytes, 4096);
  auto window = add_region(Kind::symmetric, stride * size());
  std::byte* data = window->data() + rank() * stride;
  return {std::move(window), data, bytes, bytes};
}

void NodeCollectives::free_symmetric(device::Buffer buffer) {
  std::shared_ptr<SharedWindow> window;
  {
    const std::lock_guard lock(mutex_);
    for (auto& region : regions_)
      if (region.window && region.window->contains(buffer.data()))
        window = std::move(region.window);
  }
  buffer = {};
  window.reset();  // frees it, while no lock is held
}

NodeCollectives::TensorLocation NodeCollectives::locate(const Tensor& tensor) const {
  TensorLocation location;
  const auto* data = static_cast<const std::byte*>(tensor.data());
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const auto& window = regions_[i].window;
    if (!window || !window->contains(data)) continue;
    location.region = static_cast<std::int64_t>(i);
    location.offset = data - window->data();
  }
  return location;
}

void NodeCollectives::barrier() {
  control_->barrier.arrive_and_wait(size());
}

std::vector<NodeCollectives::TensorLocation> NodeCollectives::exchange_locations(
    const CollectiveCall& call, const TensorLocation& mine) {
  TensorLocation* locations = control_->locations(calls_++, size());
  locations[rank()] = mine;
  locations[rank()].fingerprint = call.fingerprint();
  barrier();
  std::vector<TensorLocation> all(locations, locations + size());
  std::vector<std::uint64_t> fingerprints;
  for (const TensorLocation& location : all) fingerprints.push_back(location.fingerprint);
  fingerprint_check_.next(call, fingerprints, messages_.group());
  return all;
}

std::vector<std::byte*> NodeCollectives::addresses(std::span<const TensorLocation> locations,
                                                   Kind kind) const {
  std::vector<std::byte*> all;
  const std::lock_guard lock(mutex_);
  for (const TensorLocation& location : locations) {
    if (location.empty) {
      all.push_back(nullptr);
      continue;
    }
    if (location.region < 0) return {};
    const Region& region = regions_[static_cast<std::size_t>(location.region)];
    if (region.kind != kind) return {};
    all.push_back(region.window->data() + location.offset);
  }
  // Gathered memory is a single copy only if all ranks pass the same location.
  if (kind == Kind::gathered && std::ranges::adjacent_find(all, std::not_equal_to<>{}) != all.end())
    return {};
  return all;
}

void NodeCollectives::move_all_gather(const CollectiveCall& call, const Tensor& whole,
                                      const Tensor& mine) {
  const std::int64_t n = mine.numel();
  const Tensor own = whole.slice(rank() * n, n);
  TensorLocation location = locate(whole);
  location.written = mine.data() == own.data() && mine.dtype() == whole.dtype();
  const auto locations = exchange_locations(call, location);
  if (!addresses(locations, Kind::gathered).empty()) {
    // After the first barrier no rank reads the old contents.
    if (std::ranges::all_of(locations, &TensorLocation::written)) return;
    copy_cast(own, mine);
    return barrier();
  }
  const auto peers = addresses(locations, Kind::symmetric);
  if (peers.empty()) return messages_.all_gather(whole, mine);
  copy_cast(own, mine);
  barrier();
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    std::memcpy(whole.slice(peer * n, n).data(),
                peers[static_cast<std::size_t>(peer)] + peer * own.bytes(),
                static_cast<std::size_t>(own.bytes()));
  }
  barrier();
}

void NodeCollectives::move_reduce_scatter(const CollectiveCall& call, const Tensor& mine,
                                          const Tensor& parts, Accumulate accumulate) {
  const auto locations = exchange_locations(call, locate(parts));
  const auto peers = addresses(locations, Kind::symmetric);
  if (peers.empty()) return messages_.reduce_scatter(mine, parts, accumulate);
  const std::int64_t n = mine.numel();
  if (size() > 1 || accumulate == Accumulate::yes || mine.data() != parts.data())
    sum_parts(mine, moved(peers, rank() * n * size_of(parts.dtype())), parts.dtype(), accumulate);
  barrier();  // the peers may overwrite their parts now
}

void NodeCollectives::move_all_reduce(const CollectiveCall& call, const Tensor& sum,
                                      const Tensor& data) {
  const auto locations = exchange_locations(call, locate(data));
  const auto peers = addresses(locations, Kind::symmetric);
  if (peers.empty()) return messages_.all_reduce(sum, data);
  const auto type = data.dtype();
  const auto own = slice_of(data.numel(), rank(), size());
  sum_parts(data.slice(own.first, own.count), moved(peers, own.first * size_of(type)), type,
            Accumulate::no);
  barrier();
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const auto [first, count] = slice_of(data.numel(), peer, size());
    std::byte* const summed = peers[static_cast<std::size_t>(peer)] + first * size_of(type);
    copy_cast(sum.slice(first, count), Tensor(summed, type, {count}));
  }
  barrier();
}

void NodeCollectives::move_broadcast(const CollectiveCall& call, const Tensor& data) {
  const auto locations = exchange_locations(call, locate(data));
  if (!addresses(locations, Kind::gathered).empty()) return;  // one copy shared by all ranks
  const auto peers = addresses(locations, Kind::symmetric);
  if (peers.empty()) return messages_.broadcast(data, call.root);
  if (rank() != call.root)
    std::memcpy(data.data(), peers[static_cast<std::size_t>(call.root)],
                static_cast<std::size_t>(data.bytes()));
  barrier();
}

void NodeCollectives::move_parts(const CollectiveCall& call, const PeerParts& received,
                                 const PeerParts& sent) {
  TensorLocation location = locate(sent.data());
  location.empty = sent.data().numel() == 0;
  const auto locations = exchange_locations(call, location);
  const auto peers = addresses(locations, Kind::symmetric);
  if (peers.empty()) return messages_.move_parts(call, received, sent);
  const auto announced = messages_.announce(call, sent);
  copy_cast(received[rank()], sent[rank()]);
  for (int step = 1; step < size(); ++step) {
    const auto peer = static_cast<std::size_t>((rank() + step) % size());
    const auto& [bytes, offset] = announced[peer];
    const Tensor part = received[static_cast<int>(peer)];
    if (bytes > 0 && bytes == part.bytes())
      std::memcpy(part.data(), peers[peer] + offset, static_cast<std::size_t>(bytes));
  }
  barrier();  // the peers may overwrite what they sent now
  check_received(call, messages_.group(), received, announced);
}

}  // namespace llamesh::comm
