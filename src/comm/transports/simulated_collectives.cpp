#include "comm/transports/simulated_collectives.hpp"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "comm/transports/pairwise_exchange.hpp"
#include "device/simulated/simulation.hpp"

namespace llamesh::comm {
namespace {

const device::Hardware& hardware() {
  return device::Simulation::current().hardware();
}

/// Returns the seconds for one pass over device memory.
double pass_seconds(std::int64_t bytes) {
  return static_cast<double>(bytes) / hardware().memory_bandwidth;
}

/// Returns the seconds to cast or add a rank's own part; zero if it is in place.
double own_part_seconds(const Tensor& to, const Tensor& from) {
  return to.data() == from.data() ? 0 : pass_seconds(to.bytes() + from.bytes());
}

}  // namespace

SimulatedCollectives::SimulatedCollectives(int rank, int size, int nodes, bool within_node, Log log,
                                           SumOrder order)
    : Collectives(rank, size),
      nodes_(nodes),
      order_(order),
      on_cpu_(hardware().kind == device::Kind::cpu),
      shares_memory_(on_cpu_ && within_node),
      links_(std::make_shared<device::Stream>(device::Stream::communication())),
      log_(std::move(log)) {}

void SimulatedCollectives::log(const CollectiveCall& call) const {
  if (log_) log_(call);
}

device::Buffer SimulatedCollectives::allocate_gathered(std::int64_t bytes_per_rank) {
  log(CollectiveCall::of("gathered buffer", subject(), "", bytes_per_rank * size()));
  if (!shares_memory_) return device::Buffer(bytes_per_rank * size());
  auto window = std::make_shared<device::Buffer>(bytes_per_rank * size(), device::Counted::no);
  auto* data = window->data();
  return {std::move(window), data, bytes_per_rank * size(), bytes_per_rank};
}

bool SimulatedCollectives::shares_gathered() const {
  return shares_memory_ || Collectives::shares_gathered();
}

device::Buffer SimulatedCollectives::allocate_symmetric(std::int64_t bytes) {
  log(CollectiveCall::of("symmetric buffer", subject(), "", bytes));
  return device::Buffer(bytes);
}

double SimulatedCollectives::bytes_of_others(const Tensor& whole) const {
  const auto bytes = whole.bytes() / size() * (size() - 1);
  return static_cast<double>(bytes);
}

SimulatedCollectives::Ring SimulatedCollectives::ring(double bytes, int steps) const {
  if (size() == 1) return {0, 0};
  const auto& within = hardware().within_node;
  const auto& between = hardware().between_nodes;
  const double rounds = static_cast<double>(steps) / (size() - 1);
  const double far = rounds * (nodes_ - 1);
  const double latency = far * between.latency + (steps - far) * within.latency;
  // A ring enters and leaves a node over the links of all its ranks there.
  double bandwidth = nodes_ == size() ? between.bandwidth : within.bandwidth;
  if (nodes_ > 1) bandwidth = std::min(bandwidth, between.bandwidth * size() / nodes_);
  return {hardware().collective_seconds + latency, bytes / bandwidth};
}

std::optional<double> SimulatedCollectives::measured_seconds(const CollectiveCall& call) const {
  const auto& measured = hardware().measured;
  const auto& by_dtype = shares_memory_ ? measured.within_node : measured.between_nodes;
  const auto dtype =
      std::string_view(call.dtype.data()) == name_of(DType::bf16) ? DType::bf16 : DType::f32;
  const auto tables = by_dtype.find(dtype);
  if (size() == 1 || tables == by_dtype.end()) return std::nullopt;
  const auto table = tables->second.find(std::string_view(call.kind.data()));
  if (table == tables->second.end() || call.bytes == 0) return std::nullopt;
  const double sent = static_cast<double>(call.bytes) * (size() - 1) / size();
  return sent / table->second.at(sent);
}

void SimulatedCollectives::take(const CollectiveCall& call, double own, const Ring& ring) {
  auto& simulation = device::Simulation::current();
  log(call);
  if (own + ring.transfer > 0)
    if (const auto seconds = measured_seconds(call))
      return simulation.run_on_cores(stream(), *seconds);
  simulation.run(stream(), own + ring.latency);
  if (ring.transfer > 0) {
    links_->wait(stream().record());
    simulation.run(*links_, ring.transfer);
    stream().wait(links_->record());
  }
}

/// Allocates the scratch for a sum: CPU messages have it by the dtype, GPUs need half the parts for
/// a tree.
void SimulatedCollectives::need_scratch(const Tensor& parts) {
  if (shares_memory_ || (!on_cpu_ && !sums_as_tree())) return;
  const auto bytes =
      on_cpu_ ? PairwiseExchange::scratch_bytes(size(), parts.dtype()) : parts.bytes() / 2;
  if (scratch_.bytes() >= bytes) return;
  const device::ScopedMemoryTag use(device::MemoryUse::scratch);
  scratch_ = {};  // free first, as the transports do
  scratch_ = device::Buffer(bytes);
}

/// Takes the time for a reduction as a tree: in each step a rank exchanges half its data and adds
/// up what comes. To gather, the steps follow once more backwards.
void SimulatedCollectives::reduce_as_tree(const CollectiveCall& call, const Tensor& parts,
                                          double own, bool gathers) {
  const int per_node = size() / nodes_;
  Ring steps{hardware().collective_seconds, 0};
  auto bytes = parts.bytes();
  for (int step = 1; step < size(); step *= 2) {
    bytes /= 2;
    const auto& link = step < per_node ? hardware().within_node : hardware().between_nodes;
    const int times = gathers ? 2 : 1;
    steps.latency += times * (link.latency + hardware().collective_seconds);
    steps.transfer += times * static_cast<double>(bytes) / link.bandwidth;
    own += pass_seconds(3 * bytes);
  }
  take(call, own, steps);
}

void SimulatedCollectives::move_all_gather(const CollectiveCall& call, const Tensor& whole,
                                           const Tensor& mine) {
  const double own = own_part_seconds(whole.slice(rank() * mine.numel(), mine.numel()), mine);
  // In a shared window the other ranks' parts are already there.
  const double moved = shares_memory_ ? 0 : bytes_of_others(whole);
  take(call, own, ring(moved, size() - 1));
}

void SimulatedCollectives::move_reduce_scatter(const CollectiveCall& call, const Tensor& mine,
                                               const Tensor& parts, Accumulate /*accumulate*/) {
  need_scratch(parts);
  const double own = own_part_seconds(mine, parts.slice(rank() * mine.numel(), mine.numel()));
  if (sums_as_tree()) return reduce_as_tree(call, parts, own, /*gathers=*/false);
  take(call, own, ring(bytes_of_others(parts), size() - 1));
}

void SimulatedCollectives::move_all_reduce(const CollectiveCall& call, const Tensor& sum,
                                           const Tensor& data) {
  need_scratch(data);
  if (sums_as_tree())
    return reduce_as_tree(call, data, own_part_seconds(sum, data), /*gathers=*/true);
  const auto sent = 2 * data.bytes() * (size() - 1) / size();
  take(call, own_part_seconds(sum, data), ring(static_cast<double>(sent), 2 * (size() - 1)));
}

void SimulatedCollectives::move_broadcast(const CollectiveCall& call, const Tensor& data) {
  take(call, 0, ring(static_cast<double>(data.bytes()), size() - 1));
}

void SimulatedCollectives::move_parts(const CollectiveCall& call, const PeerParts& received,
                                      const PeerParts& sent) {
  if (time_ && call.to == CollectiveCall::none) {
    log(call);
    return device::Simulation::current().run_until(
        stream(), [time = time_, channel = channel_, number = received_++] {
          return time->arrival(channel, number);
        });
  }
  const int per_node = size() / nodes_;
  Ring there{0, 0};
  Ring back{0, 0};
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const auto& link =
        peer / per_node == rank() / per_node ? hardware().within_node : hardware().between_nodes;
    for (const auto& [way, bytes] :
         {std::pair(&there, sent[peer].bytes()), std::pair(&back, received[peer].bytes())}) {
      if (bytes == 0) continue;
      way->latency += link.latency;
      way->transfer += static_cast<double>(bytes) / link.bandwidth;
    }
  }
  const double start = size() == 1 ? 0 : hardware().collective_seconds;
  take(call, own_part_seconds(received[rank()], sent[rank()]),
       {start + std::max(there.latency, back.latency), std::max(there.transfer, back.transfer)});
  if (time_) time_->send(channel_, device::Simulation::current().time_of(stream()));
}

}  // namespace llamesh::comm
