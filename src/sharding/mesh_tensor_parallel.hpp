#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "comm/device_mesh.hpp"
#include "device/buffer.hpp"
#include "model/tensor_parallel.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::sharding {

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
  model::ColumnBlocks partial(Tensor mine) override;
  device::Event reduce(Tensor mine) override;
  device::Event all_gather(Tensor all, Tensor mine) override;

 private:
  /// Returns the next of two buffers for the matrix gathered from each rank's `mine`.
  Tensor next_gathered(const Tensor& mine);
  /// Returns the number of ranks if they split the residual stream by `layout`, otherwise 1.
  std::int64_t parts_by(ResidualLayout layout) const { return residual_ == layout ? size() : 1; }
  Tensor dense_partial(const Tensor& mine) const;
  /// Returns a dense matrix as the model sees it.
  model::ColumnBlocks as_blocks(const Tensor& dense) const;

  comm::DeviceMesh::Axis& axis_;
  device::Stream& compute_ = device::compute_stream();
  ResidualLayout residual_;
  DType dtype_;
  std::array<device::Buffer, 2> gathered_;
  std::size_t next_ = 0;
  device::Buffer partial_;
};

/// Returns MeshTensorParallel over the mesh's tensor axis, or model::OneRank without one.
/// Collective.
std::unique_ptr<model::TensorParallel> make_tensor_parallel(comm::DeviceMesh& mesh,
                                                            const TensorOptions& options,
                                                            std::int64_t rows, std::int64_t hidden,
                                                            DType dtype);

}  // namespace llamesh::sharding
