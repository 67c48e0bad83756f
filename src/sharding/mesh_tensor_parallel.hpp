#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "comm/device_mesh.hpp"
#include "device/buffer.hpp"
#include "model/llama_config.hpp"
#include "model/tensor_parallel.hpp"
#include "sharding/placement.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::sharding {

/// Returns Megatron-LM's split of every layer along the `tensor` axis: q, k, v, gate and up by
/// outputs, o and down by inputs, embedding and head by vocabulary; norms are whole. All weights
/// are sharded along `shard`. Without a tensor axis everything is whole. `dims` comes from
/// tensor_axis_for(). Pure.
Placements tensor_parallel_placements(const model::ParameterTable& table,
                                      const comm::ParallelDims& dims, const TensorOptions& options);

/// Sets the axes that split a k or v weight by heads, and those whose ranks share a head. Pure.
void share_kv_heads(Placement& placement, const comm::ParallelDims& dims);

/// Throws a user error with the numbers if the model, or micro-batches with `rows` tokens, cannot
/// be divided among the tensor ranks. Pure.
void check_tensor_parallel(const model::LlamaConfig& config, const comm::ParallelDims& dims,
                           const TensorOptions& options, std::int64_t rows);

/// Returns the mesh for a model with `kv_heads`: if the tensor axis has more ranks than that, it is
/// split (ParallelDims::split) so that each inner group shares a head. Pure.
comm::ParallelDims tensor_axis_for(std::int64_t kv_heads, const comm::ParallelDims& dims);

/// model::TensorParallel over a mesh axis, using that axis' collectives.
class MeshTensorParallel final : public model::TensorParallel {
 public:
  /// Collective over the axis, which is borrowed. The residual stream has up to `rows` rows with
  /// `hidden` elements in `dtype`.
  MeshTensorParallel(comm::DeviceMesh::Axis& axis, const TensorOptions& options, std::int64_t rows,
                     std::int64_t hidden, DType dtype);

  int size() const override { return axis_.size; }
  int rank() const override { return axis_.rank; }
  MatrixSize residual(MatrixSize whole) const override;
  bool divides_columns() const override { return residual_ == ResidualLayout::hidden; }
  Gathered gather(Tensor mine) override;
  model::ColumnBlocks summand(Tensor mine) override;
  device::Event reduce(Tensor mine) override;
  device::Event all_gather(Tensor all, Tensor mine) override;

 private:
  /// Returns the next of two buffers for the matrix gathered from each rank's `mine`.
  Tensor next_gathered(const Tensor& mine);
  /// Returns the number of ranks if they split the residual stream by `layout`, otherwise 1.
  std::int64_t parts_by(ResidualLayout layout) const { return residual_ == layout ? size() : 1; }
  Tensor dense_summand(const Tensor& mine) const;
  /// Returns a dense matrix as the model sees it.
  model::ColumnBlocks as_blocks(const Tensor& dense) const;

  comm::DeviceMesh::Axis& axis_;
  device::Stream& compute_ = device::compute_stream();
  ResidualLayout residual_;
  DType dtype_;
  std::array<device::Buffer, 2> gathered_;
  std::size_t next_ = 0;
  device::Buffer summand_;
};

/// Returns MeshTensorParallel over the mesh's tensor axis, or model::OneRank without one.
/// Collective.
std::unique_ptr<model::TensorParallel> make_tensor_parallel(comm::DeviceMesh& mesh,
                                                            const TensorOptions& options,
                                                            std::int64_t rows, std::int64_t hidden,
                                                            DType dtype);

}  // namespace llamesh::sharding
