#include "comm/simulated_collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "comm/arguments.hpp"
#include "comm/pairwise_exchange.hpp"
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

std::string describe(const CollectiveCall& call) {
  return fmt::format("{} of {} {} ({})", call.kind, call.numel,
                     call.kind.starts_with("allocate") ? "bytes" : name_of(call.dtype),
                     call.subject);
}

SimulatedCollectives::SimulatedCollectives(int rank, int size, int nodes, bool within_node,
                                           CollectiveLog* log)
    : Collectives(rank, size),
      nodes_(nodes),
      on_cpu_(hardware().kind == device::Kind::cpu),
      shares_memory_(on_cpu_ && within_node),
      links_(std::make_shared<device::Stream>(device::Stream::communication())),
      log_(log),
      group_(log ? log->groups.size() - 1 : 0) {}

void SimulatedCollectives::note(std::string_view kind, DType dtype, std::int64_t numel, int root) {
  if (log_) log_->add(group_, {kind, subject(), dtype, numel, root});
}

device::Buffer SimulatedCollectives::allocate_gathered(std::int64_t bytes_per_rank) {
  note("allocate_gathered", DType::f32, bytes_per_rank * size());
  if (!shares_memory_) return device::Buffer(bytes_per_rank * size());
  auto window = std::make_shared<device::Buffer>(bytes_per_rank * size(), device::Counted::no);
  auto* data = window->data();
  return {std::move(window), data, bytes_per_rank * size(), bytes_per_rank};
}

bool SimulatedCollectives::shares_gathered() const {
  return shares_memory_ || Collectives::shares_gathered();
}

device::Buffer SimulatedCollectives::allocate_symmetric(std::int64_t bytes) {
  note("allocate_symmetric", DType::f32, bytes);
  return device::Buffer(bytes);
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

device::Event SimulatedCollectives::take(const device::Event& after, std::int64_t sent, double own,
                                         const Ring& ring) {
  auto& simulation = device::Simulation::current();
  count_sent(sent);
  stream().wait(after);
  simulation.run(stream(), own + ring.latency);
  if (ring.transfer > 0) {
    links_->wait(stream().record());
    simulation.run(*links_, ring.transfer);
    stream().wait(links_->record());
  }
  return stream().record();
}

/// Allocates scratch as CPU messages do, at the first sum.
void SimulatedCollectives::need_scratch() {
  if (!on_cpu_ || shares_memory_ || scratch_) return;
  const device::ScopedMemoryTag use(device::MemoryUse::scratch);
  scratch_ = device::Buffer(PairwiseExchange::scratch_bytes);
}

device::Event SimulatedCollectives::all_gather(Tensor whole, Tensor mine, device::Event after) {
  check_all_gather(*this, whole, mine);
  note("all_gather", whole.dtype(), whole.numel());
  const auto sent = all_gather_bytes(whole, size());
  const double own = own_part_seconds(whole.slice(rank() * mine.numel(), mine.numel()), mine);
  // In a shared window the other ranks' parts are already there.
  const double moved = shares_memory_ ? 0 : static_cast<double>(sent);
  return take(after, sent, own, ring(moved, size() - 1));
}

device::Event SimulatedCollectives::reduce_scatter(Tensor mine, Tensor parts, Accumulate accumulate,
                                                   device::Event after) {
  check_reduce_scatter(*this, mine, parts, accumulate);
  note("reduce_scatter", parts.dtype(), parts.numel());
  need_scratch();
  const auto sent = reduce_scatter_bytes(parts, size());
  const double own = own_part_seconds(mine, parts.slice(rank() * mine.numel(), mine.numel()));
  return take(after, sent, own, ring(static_cast<double>(sent), size() - 1));
}

device::Event SimulatedCollectives::all_reduce(Tensor data, device::Event after) {
  check_all_reduce(data);
  note("all_reduce", data.dtype(), data.numel());
  need_scratch();
  const auto sent = all_reduce_bytes(data, size());
  return take(after, sent, 0, ring(static_cast<double>(sent), 2 * (size() - 1)));
}

device::Event SimulatedCollectives::broadcast(Tensor data, int root, device::Event after) {
  check_broadcast(*this, data, root);
  note("broadcast", data.dtype(), data.numel(), root);
  return take(after, broadcast_bytes(*this, data, root), 0,
              ring(static_cast<double>(data.bytes()), size() - 1));
}

}  // namespace llamesh::comm
