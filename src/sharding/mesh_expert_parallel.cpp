#include "sharding/mesh_expert_parallel.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "device/device.hpp"
#include "device/simulated/simulation.hpp"
#include "device/stream.hpp"
#include "ops/ops.hpp"

namespace llamesh::sharding {
namespace {

constexpr const char* counts_subject = "rows for each expert";
constexpr const char* rows_subject = "rows for experts";

std::int64_t total(const std::vector<std::int64_t>& rows) {
  return std::reduce(rows.begin(), rows.end());
}

std::vector<std::int64_t> elements(const std::vector<std::int64_t>& rows, std::int64_t columns) {
  std::vector<std::int64_t> counts;
  for (const auto count : rows) counts.push_back(count * columns);
  return counts;
}

}  // namespace

MeshExpertParallel::MeshExpertParallel(comm::DeviceMesh::Axis& axis, std::int64_t experts,
                                       double imbalance)
    : axis_(axis), experts_(experts), imbalance_(imbalance) {
  expects(experts % axis.size == 0, "{} experts among {} ranks", experts, axis.size);
  const device::ScopedMemoryTag use(device::MemoryUse::expert_parallel);
  const auto numel = axis.size * (experts + 1);
  axis.collectives->set_subject(counts_subject);
  starts_ = axis.collectives->allocate_symmetric(numel * size_of(DType::i32));
  host_starts_.resize(static_cast<std::size_t>(numel));
  axis.collectives->connect_pairs();
}

/// Returns the rows that one rank sends to another.
std::int64_t MeshExpertParallel::rows_for(int from, int to) const {
  const auto per_rank = experts_ / size();
  const auto* starts = host_starts_.data() + from * (experts_ + 1);
  return starts[(to + 1) * per_rank] - starts[to * per_rank];
}

/// Sets what all ranks' routers would choose on average.
void MeshExpertParallel::simulate_counts(const model::ExpertRows& rows) {
  const auto count = rows.order.slots.numel();
  for (int rank = 0; rank < size(); ++rank)
    for (std::int64_t e = 0; e <= experts_; ++e)
      host_starts_[static_cast<std::size_t>(rank * (experts_ + 1) + e)] =
          static_cast<std::int32_t>(count * e / experts_);
}

void MeshExpertParallel::exchange_counts(model::ExpertRows& rows) {
  const Tensor all = starts_.tensor(DType::i32, {size(), experts_ + 1});
  axis_.collectives->set_subject(counts_subject);
  compute_.wait(axis_.collectives->all_gather(all, rows.order.starts, compute_.record()));
  device::download(compute_, host_starts_.data(), all);
  const bool simulated = device::kind() == device::Kind::simulated;
  if (simulated) simulate_counts(rows);

  rows.sent.clear();
  rows.received.clear();
  for (int peer = 0; peer < size(); ++peer) {
    const auto received = rows_for(peer, axis_.rank);
    rows.sent.push_back(rows_for(axis_.rank, peer));
    rows.received.push_back(simulated && peer != axis_.rank
                                ? std::llround(imbalance_ * static_cast<double>(received))
                                : received);
  }
  rows.count = total(rows.received);
  max_rows_ = std::max({max_rows_, total(rows.sent), rows.count});
  for (int rank = 0; rank < size(); ++rank) {
    std::int64_t received = 0;
    for (int peer = 0; peer < size(); ++peer) received += rows_for(peer, rank);
    max_rows_ = std::max(max_rows_, received);
  }
  sort_received(rows);
}

/// Sorts the rows, which arrive rank by rank and sorted by expert within each, by expert.
void MeshExpertParallel::sort_received(model::ExpertRows& rows) {
  const auto per_rank = experts_ / size();
  rows.memory.place([&](model::ArenaAllocator& plan) {
    rows.starts = plan.take(DType::i32, {per_rank + 1});
    rows.received_order = {.starts = rows.starts,
                           .slots = plan.take(DType::i32, {rows.count}),
                           .places = plan.take(DType::i32, {rows.count})};
  });
  received_experts_.clear();
  for (int peer = 0; peer < size(); ++peer)
    for (std::int64_t e = 0; e < per_rank; ++e) {
      const auto* start = host_starts_.data() + peer * (experts_ + 1) + axis_.rank * per_rank + e;
      received_experts_.insert(received_experts_.end(),
                               static_cast<std::size_t>(start[1] - start[0]),
                               static_cast<std::int32_t>(e));
    }
  received_experts_.resize(static_cast<std::size_t>(rows.count));  // fewer if they are simulated
  const Tensor experts(received_experts_.data(), DType::i32, {rows.count});
  ops::sort_by_expert(compute_, rows.received_order, staging_.to_device(compute_, experts));
}

/// Returns a matrix with columns like those of `like`, in the memory that other ranks read. A
/// larger one than ever before is collective.
Tensor MeshExpertParallel::outgoing(std::int64_t rows, const Tensor& like) {
  const auto bytes = max_rows_ * like.cols() * size_of(like.dtype());
  if (outgoing_.bytes() < bytes) {
    const device::ScopedMemoryTag use(device::MemoryUse::expert_parallel);
    if (outgoing_) axis_.collectives->free_symmetric(std::move(outgoing_));
    outgoing_ = axis_.collectives->allocate_symmetric(bytes + bytes / 4);
  }
  return outgoing_.tensor(like.dtype(), {rows, like.cols()});
}

Tensor MeshExpertParallel::incoming(std::int64_t rows, const Tensor& like) {
  Tensor received;
  incoming_.place([&](model::ArenaAllocator& plan) {
    received = plan.take(like.dtype(), {rows, like.cols()});
  });
  return received;
}

void MeshExpertParallel::exchange(const Tensor& received,
                                  const std::vector<std::int64_t>& received_rows,
                                  const Tensor& sent, const std::vector<std::int64_t>& sent_rows) {
  axis_.collectives->set_subject(rows_subject);
  compute_.wait(axis_.collectives->all_to_all(received, elements(received_rows, received.cols()),
                                              sent, elements(sent_rows, sent.cols()),
                                              compute_.record()));
}

void MeshExpertParallel::dispatch(const model::ExpertRows& rows, Tensor to, Tensor x) {
  const Tensor sent = outgoing(rows.order.slots.numel(), x);
  const Tensor received = incoming(rows.count, x);
  ops::dispatch_tokens(compute_, sent, x, rows.order.slots);
  exchange(received, rows.received, sent, rows.sent);
  if (rows.count > 0) ops::dispatch_tokens(compute_, to, received, rows.received_order.slots);
}

Tensor MeshExpertParallel::collect(const model::ExpertRows& rows, Tensor from) {
  const Tensor sent = outgoing(rows.count, from);
  const Tensor received = incoming(rows.order.slots.numel(), from);
  if (rows.count > 0) ops::dispatch_tokens(compute_, sent, from, rows.received_order.places);
  exchange(received, rows.sent, sent, rows.received);
  return received;
}

std::unique_ptr<model::ExpertParallel> make_expert_parallel(comm::DeviceMesh& mesh,
                                                            const model::ModelConfig& config) {
  const auto along = mesh.dims().named({"expert"});
  if (mesh.dims().group_size(along) == 1) return std::make_unique<model::OneRankOfExperts>();
  const auto* simulation = device::Simulation::active();
  return std::make_unique<MeshExpertParallel>(mesh.along(along), config.num_experts,
                                              simulation ? simulation->expert_imbalance() : 1);
}

model::DataRanks data_ranks(comm::DeviceMesh& mesh) {
  const auto& dims = mesh.dims();
  const auto axes = dims.gradient_axes() | dims.pipeline();  // a stage has some of the layers
  if (dims.group_size(axes) == 1) return {};
  auto& collectives = *mesh.along(axes).collectives;
  return {.count = dims.group_size(dims.gradient_axes()),
          .sum =
              [&collectives](const Tensor& sums) {
                collectives.set_subject("expert balance");
                return collectives.all_reduce(sums, device::compute_stream().record());
              },
          .allocate =
              [&collectives](std::int64_t bytes) {
                const device::ScopedMemoryTag use(device::MemoryUse::expert_parallel);
                return collectives.allocate_symmetric(bytes);
              }};
}

}  // namespace llamesh::sharding
