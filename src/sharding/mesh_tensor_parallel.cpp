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
  for (auto& buffer : gathered_)
    buffer = axis.collectives->allocate_gathered(round_up((bytes + axis.size - 1) / axis.size));
  partial_ = axis.collectives->allocate_symmetric(bytes);
}

model::TensorParallel::MatrixSize MeshTensorParallel::residual(MatrixSize whole) const {
  const auto by_rows = parts_by(ResidualLayout::sequence);
  const auto by_columns = parts_by(ResidualLayout::hidden);
  expects(whole.rows % by_rows == 0 && whole.cols % by_columns == 0, "({}, {}) among {} ranks",
          whole.rows, whole.cols, size());
  return {whole.rows / by_rows, whole.cols / by_columns};
}

Tensor MeshTensorParallel::next_gathered(const Tensor& mine) {
  next_ = (next_ + 1) % gathered_.size();
  const auto parts = residual_ == ResidualLayout::whole ? 1 : size();
  return gathered_[next_].tensor(dtype_, {parts * mine.rows(), mine.cols()});
}

Tensor MeshTensorParallel::dense_partial(const Tensor& mine) const {
  const auto parts = residual_ == ResidualLayout::whole ? 1 : size();
  return partial_.tensor(dtype_, {parts * mine.rows(), mine.cols()});
}

/// If split by columns, each rank's block is a dense matrix.
model::ColumnBlocks MeshTensorParallel::as_blocks(const Tensor& dense) const {
  const auto count = parts_by(ResidualLayout::hidden);
  const auto rows = dense.rows() / count;
  std::vector<Tensor> blocks;
  for (std::int64_t i = 0; i < count; ++i) blocks.push_back(dense.slice_rows(i * rows, rows));
  return model::ColumnBlocks(std::move(blocks));
}

model::TensorParallel::Gathered MeshTensorParallel::gather(Tensor mine) {
  if (residual_ == ResidualLayout::whole) return {mine, {}};
  const Tensor all = next_gathered(mine);
  return {as_blocks(all), all_gather(all, mine)};
}

model::ColumnBlocks MeshTensorParallel::partial(Tensor mine) {
  return as_blocks(dense_partial(mine));
}

device::Event MeshTensorParallel::reduce(Tensor mine) {
  auto& collectives = *axis_.collectives;
  collectives.set_subject("activations");
  const Tensor partials = dense_partial(mine);
  if (residual_ != ResidualLayout::whole)
    return collectives.reduce_scatter(mine, partials, Accumulate::no, compute_.record());
  // An all-reduce in its two halves, which works for every dtype.
  const Tensor all = next_gathered(mine);
  const auto part = all.numel() / size();
  const Tensor own = all.slice(rank() * part, part);
  const auto summed = collectives.reduce_scatter(own, partials, Accumulate::no, compute_.record());
  compute_.wait(collectives.all_gather(all, own, summed));
  ops::copy(compute_, mine, all);
  return {};
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
