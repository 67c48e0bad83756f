#include "sharding/mesh_tensor_parallel.hpp"

#include "core/error.hpp"
#include "ops/ops.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::int64_t alignment = 64;  // for a rank's part in a gathered buffer

std::int64_t round_up(std::int64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

MeshTensorParallel::MeshTensorParallel(comm::DeviceMesh::Axis& axis, const TensorOptions& options,
                                       std::int64_t rows, std::int64_t hidden, DType dtype)
    : axis_(axis), residual_(options.residual), dtype_(dtype) {
  const device::ScopedMemoryTag use(device::MemoryUse::tensor_parallel);
  const auto bytes = rows * hidden * size_of(dtype);
  if (residual_ != ResidualLayout::whole)
    for (auto& buffer : gathered_)
      buffer = axis.collectives->allocate_gathered(round_up((bytes + axis.size - 1) / axis.size));
  partials_ = axis.collectives->allocate_symmetric(bytes);
  if (!divides_columns()) return;
  for (auto& buffer : gathered_matrices_) buffer = device::Buffer(bytes);
  partial_matrix_ = device::Buffer(bytes);
}

model::TensorParallel::MatrixSize MeshTensorParallel::residual(MatrixSize whole) const {
  const auto by_rows = parts_by(ResidualLayout::sequence);
  const auto by_columns = parts_by(ResidualLayout::hidden);
  expects(whole.rows % by_rows == 0 && whole.cols % by_columns == 0, "({}, {}) among {} ranks",
          whole.rows, whole.cols, size());
  return {whole.rows / by_rows, whole.cols / by_columns};
}

Tensor MeshTensorParallel::parts_in(const device::Buffer& buffer, const Tensor& mine) const {
  const auto parts = residual_ == ResidualLayout::whole ? 1 : size();
  return buffer.tensor(dtype_, {parts * mine.rows(), mine.cols()});
}

Tensor MeshTensorParallel::matrix_in(const device::Buffer& buffer, const Tensor& mine) const {
  return buffer.tensor(dtype_, {mine.rows(), size() * mine.cols()});
}

void copy_columns(device::Stream& stream, const Tensor& matrix, const Tensor& parts, int ranks,
                  ColumnCopy direction) {
  const auto columns = matrix.cols() / ranks, numel = matrix.rows() * columns;
  for (std::int64_t i = 0; i < ranks; ++i) {
    const Tensor in_matrix = matrix.slice_cols(i * columns, columns);
    const Tensor part = parts.slice(i * numel, numel).reshape({matrix.rows(), columns});
    if (direction == ColumnCopy::to_matrix)
      ops::copy(stream, in_matrix, part);
    else
      ops::copy(stream, part, in_matrix);
  }
}

model::TensorParallel::Gathered MeshTensorParallel::gather(Tensor mine) {
  if (residual_ == ResidualLayout::whole) return {mine, {}};
  next_ = (next_ + 1) % gathered_.size();
  const Tensor parts = parts_in(gathered_[next_], mine);
  const auto ready = all_gather(parts, mine);
  if (!divides_columns()) return {parts, ready};
  const Tensor matrix = matrix_in(gathered_matrices_[next_], mine);
  compute_.wait(ready);
  copy_columns(compute_, matrix, parts, size(), ColumnCopy::to_matrix);
  return {matrix, {}};
}

Tensor MeshTensorParallel::partial(Tensor mine) {
  return divides_columns() ? matrix_in(partial_matrix_, mine) : parts_in(partials_, mine);
}

device::Event MeshTensorParallel::reduce(Tensor mine) {
  auto& collectives = *axis_.collectives;
  const Tensor partials = parts_in(partials_, mine);
  if (divides_columns())
    copy_columns(compute_, matrix_in(partial_matrix_, mine), partials, size(),
                 ColumnCopy::to_parts);
  collectives.set_subject("activations");
  return residual_ == ResidualLayout::whole
             ? collectives.all_reduce(mine, partials, compute_.record())
             : collectives.reduce_scatter(mine, partials, Accumulate::no, compute_.record());
}

device::Event MeshTensorParallel::all_gather(Tensor all, Tensor mine) {
  axis_.collectives->set_subject("activations");
  return axis_.collectives->all_gather(all, mine, compute_.record());
}

std::unique_ptr<model::TensorParallel> make_tensor_parallel(comm::DeviceMesh& mesh,
                                                            const TensorOptions& options,
                                                            std::int64_t rows, std::int64_t hidden,
                                                            DType dtype) {
  const auto axes = mesh.dims().tensor();
  if (mesh.dims().group_size(axes) == 1) return std::make_unique<model::OneRank>();
  return std::make_unique<MeshTensorParallel>(mesh.along(axes), options, rows, hidden, dtype);
}

}  // namespace llamesh::sharding
