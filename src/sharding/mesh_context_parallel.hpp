#pragma once

#include <cstdint>
#include <memory>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "model/description/model_config.hpp"
#include "model/layers/context_parallel.hpp"

namespace llamesh::sharding {

/// model::ContextParallel over a mesh axis. A layer's keys and values travel together, in one
/// all-gather and one reduce-scatter. Collectives move them as one block per rank; this class
/// brings rows into the order of the sequences and back.
///
/// All layers share its buffers: keys and values of other ranks are gathered again for the backward
/// pass, and never kept.
class MeshContextParallel final : public model::ContextParallel {
 public:
  /// Sizes of a pass.
  struct Shape {
    std::int64_t batch;          ///< B
    std::int64_t tokens;         ///< T: of each sequence on this rank, an even number
    std::int64_t key_columns;    ///< K E
    std::int64_t value_columns;  ///< K V
    DType dtype;
    std::int64_t summed = 0;  ///< most numbers that sum() gets
  };
  /// Collective over the axis, which is borrowed.
  MeshContextParallel(comm::DeviceMesh::Axis& axis, const Shape& shape);

  int size() const override { return axis_.size; }
  int rank() const override { return axis_.rank; }
  model::KeysValues gather(const model::KeysValues& mine, const Meanwhile& meanwhile) override;
  model::KeysValues gradients(const model::KeysValues& mine) override;
  void reduce(const model::KeysValues& mine, const Meanwhile& meanwhile) override;
  void sum(const Tensor& values) override;

 private:
  std::int64_t rows() const { return shape_.batch * shape_.tokens; }
  std::int64_t columns() const { return shape_.key_columns + shape_.value_columns; }
  /// Returns `buffer` as (rows, columns()), keys beside values.
  Tensor matrix(const device::Buffer& buffer, std::int64_t rows) const;
  /// Returns all ranks' rows in `buffer`.
  Tensor all(const device::Buffer& buffer) const { return matrix(buffer, size() * rows()); }
  model::KeysValues halves(const Tensor& matrix) const;

  comm::DeviceMesh::Axis& axis_;
  device::Stream& compute_ = device::compute_stream();
  Shape shape_;
  device::Buffer mine_;       ///< this rank's rows, to gather or reduced
  device::Buffer gathered_;   ///< rank by rank
  device::Buffer ordered_;    ///< sequence by sequence
  device::Buffer gradients_;  ///< of ordered_
  device::Buffer partials_;   ///< the same, rank by rank: to reduce
  device::Buffer sums_;
  device::Buffer to_sequences_, to_ranks_;  ///< int32: the row that each row is copied from
};

/// Fills the buffers with int32: the row of each rank's rows, one rank's after the other's, that
/// each row of whole sequences is copied from, and the inverse. Row i of sequence b on rank r is
/// the (r B + b) T + i-th.
void upload_context_order(device::Stream& stream, device::Buffer& to_sequences,
                          device::Buffer& to_ranks, int ranks,
                          const MeshContextParallel::Shape& shape);

/// Name of what context ranks exchange, for messages.
inline constexpr const char* context_subject = "keys and values";

/// Returns the sizes of passes with `batch` rows and `tokens` tokens on each rank, which sum up to
/// `summed` numbers, if `tensor_ranks` divide the model's heads.
MeshContextParallel::Shape context_shape(const model::ModelConfig& config, int tensor_ranks,
                                         std::int64_t batch, std::int64_t tokens, DType dtype,
                                         std::int64_t summed = 0);

/// Returns MeshContextParallel over the mesh's context axis, or model::WholeSequences without one.
/// Collective.
std::unique_ptr<model::ContextParallel> make_context_parallel(
    comm::DeviceMesh& mesh, const MeshContextParallel::Shape& shape);

}  // namespace llamesh::sharding
