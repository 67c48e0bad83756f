#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/mesh/device_mesh.hpp"
#include "device/async_copy.hpp"
#include "device/buffer.hpp"
#include "model/description/model_config.hpp"
#include "model/layers/expert_parallel.hpp"
#include "model/layers/router_balance.hpp"

/// M tokens on this rank, each taken by k of N experts; R rows for this rank's experts.
namespace llamesh::sharding {

/// model::ExpertParallel over a mesh axis: rank i holds experts [i N', (i + 1) N') of N. Each layer
/// gathers the ranks' counts, so that all know what each receives, and then exchanges exactly the
/// rows that there are.
///
/// Buffers grow with the largest exchange so far. All ranks on the axis grow theirs together.
class MeshExpertParallel final : public model::ExpertParallel {
 public:
  /// `axis` is borrowed. Its size divides `experts`, N. `imbalance`: on a simulated device, how
  /// many times the mean number of rows this rank receives; there the router chooses evenly.
  MeshExpertParallel(comm::DeviceMesh::Axis& axis, std::int64_t experts, double imbalance = 1);

  int size() const override { return axis_.size; }
  void exchange_counts(model::ExpertRows& rows) override;
  void dispatch(const model::ExpertRows& rows, Tensor to, Tensor x) override;
  Tensor collect(const model::ExpertRows& rows, Tensor from) override;

 private:
  std::int64_t rows_for(int from, int to) const;
  void simulate_counts(const model::ExpertRows& rows);
  void sort_received(model::ExpertRows& rows);
  Tensor outgoing(std::int64_t rows, const Tensor& like);
  Tensor incoming(std::int64_t rows, const Tensor& like);
  void exchange(const Tensor& received, const std::vector<std::int64_t>& received_rows,
                const Tensor& sent, const std::vector<std::int64_t>& sent_rows);

  comm::DeviceMesh::Axis& axis_;
  device::Stream& compute_ = device::compute_stream();
  std::int64_t experts_;  ///< N
  double imbalance_;
  device::Buffer starts_;                  ///< (ranks, N + 1) int32: order.starts of all ranks
  std::vector<std::int32_t> host_starts_;  ///< the same
  std::int64_t max_rows_ = 0;              ///< that any rank has sent or received
  device::Buffer outgoing_;
  model::GrowingMemory incoming_{device::MemoryUse::expert_parallel};
  std::vector<std::int32_t> received_experts_;  ///< of each received row
  device::Staging staging_;
};

/// Returns MeshExpertParallel over the mesh's expert axis, or model::OneRankOfExperts without one.
/// Collective.
std::unique_ptr<model::ExpertParallel> make_expert_parallel(comm::DeviceMesh& mesh,
                                                            const model::ModelConfig& config);

/// Returns the ranks whose gradients add up (ParallelDims::gradient_axes()). Borrows the mesh.
/// Collective.
model::DataRanks data_ranks(comm::DeviceMesh& mesh);

}  // namespace llamesh::sharding
