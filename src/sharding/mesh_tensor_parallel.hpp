#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "comm/mesh/device_mesh.hpp"
#include "device/buffer.hpp"
#include "model/layers/tensor_parallel.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::sharding {

/// model::TensorParallel over a mesh axis, using that axis' collectives.
///
/// With ResidualLayout::hidden the ranks' parts are columns (M, D / t), which collectives move as
/// one block per rank. Only this class knows: it copies between the blocks and the plain matrix
/// (M, D) that the model sees.
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
  Tensor partial(Tensor mine) override;
  device::Event reduce(Tensor mine) override;
  device::Event all_gather(Tensor all, Tensor mine) override;

 private:
  /// Returns the number of ranks if they split the residual stream by `layout`, otherwise 1.
  std::int64_t parts_by(ResidualLayout layout) const { return residual_ == layout ? size() : 1; }
  /// Returns `buffer` as all ranks' parts like `mine`, one after the other.
  Tensor parts_in(const device::Buffer& buffer, const Tensor& mine) const;
  Tensor matrix_in(const device::Buffer& buffer, const Tensor& mine) const;

  comm::DeviceMesh::Axis& axis_;
  device::Stream& compute_ = device::compute_stream();
  ResidualLayout residual_;
  DType dtype_;
  std::array<device::Buffer, 2>
      gathered_;  ///< parts, used in turn; none with ResidualLayout::whole
  std::size_t next_ = 0;
  device::Buffer partials_;  ///< parts to reduce
  // With ResidualLayout::hidden only: what the model sees of the two above.
  std::array<device::Buffer, 2> gathered_matrices_;
  device::Buffer partial_matrix_;
};

/// Copies between a matrix (M, D) and its columns as equal parts (M, D / t), one after the other.
enum class ColumnCopy : bool { to_matrix, to_parts };
void copy_columns(device::Stream& stream, const Tensor& matrix, const Tensor& parts, int ranks,
                  ColumnCopy direction);

/// Returns MeshTensorParallel over the mesh's tensor axis, or model::OneRank without one.
/// Collective.
std::unique_ptr<model::TensorParallel> make_tensor_parallel(comm::DeviceMesh& mesh,
                                                            const TensorOptions& options,
                                                            std::int64_t rows, std::int64_t hidden,
                                                            DType dtype);

}  // namespace llamesh::sharding
