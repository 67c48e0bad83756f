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

void share_kv_heads(Placement& placement, const comm::ParallelDims& dims) {
  placement.cut[0] = dims.tensor() & ~dims.inner("tensor");
  placement.partial = dims.inner("tensor");  // each rank has the gradient from its own heads'
                                             // queries
}

Placements tensor_parallel_placements(const model::ParameterTable& table,
                                      const comm::ParallelDims& dims,
                                      const TensorOptions& options) {
  auto placements = whole_and_sharded(table, dims);
  const auto tensor = dims.tensor();
  if (dims.group_size(tensor) == 1) return placements;
  const auto of = [&](const model::Leaf& leaf) -> Placement& {
    return placements[model::index(leaf.weight)];
  };
  const auto norm = [&](const model::Leaf& leaf) {
    // For its own rows a rank has the norm's output, and thus a partial gradient; for its own
    // columns it has the full gradient.
    if (options.residual == ResidualLayout::sequence) of(leaf).partial = tensor;
    if (options.residual == ResidualLayout::hidden) of(leaf).cut[0] = tensor;
  };
  of(table.embed_tokens).cut[0] = tensor;
  of(table.lm_head).cut[0] = tensor;
  norm(table.norm);
  for (const auto& layer : table.layers) {
    for (const auto& leaf : {layer.q_proj, layer.gate_proj, layer.up_proj})
      of(leaf).cut[0] = tensor;
    for (const auto& leaf : {layer.k_proj, layer.v_proj}) share_kv_heads(of(leaf), dims);
    for (const auto& leaf : {layer.o_proj, layer.down_proj}) of(leaf).cut[1] = tensor;
    norm(layer.input_norm);
    norm(layer.post_attention_norm);
  }
  return placements;
}

comm::ParallelDims tensor_axis_for(std::int64_t kv_heads, const comm::ParallelDims& dims) {
  const int ranks = dims.group_size(dims.tensor());
  if (ranks <= kv_heads || ranks % kv_heads != 0) return dims;
  return dims.split("tensor", ranks / static_cast<int>(kv_heads));
}

void check_tensor_parallel(const model::LlamaConfig& config, const comm::ParallelDims& dims,
                           const TensorOptions& options, std::int64_t rows) {
  const int ranks = dims.group_size(dims.tensor());
  config.divided_among(ranks);
  if (options.residual == ResidualLayout::sequence)
    validate(rows % ranks == 0,
             "the {} tokens of a micro-batch cannot be divided among {} ranks (mesh.axes.tensor); "
             "change train.micro_batch or data.sequence_length, or set tensor.residual to hidden "
             "or whole",
             rows, ranks);
  else if (options.residual == ResidualLayout::hidden)
    validate(config.hidden_size % ranks == 0,
             "model.hidden_size {} cannot be divided among {} ranks (mesh.axes.tensor), as "
             "tensor.residual=hidden does; use sequence or whole",
             config.hidden_size, ranks);
  else
    validate(rows * config.hidden_size % ranks == 0,
             "the {} tokens x hidden_size {} of a micro-batch cannot be divided among {} ranks "
             "(mesh.axes.tensor); change train.micro_batch",
             rows, config.hidden_size, ranks);
}

MeshTensorParallel::MeshTensorParallel(comm::DeviceMesh::Axis& axis, const TensorOptions& options,
                                       std::int64_t rows, std::int64_t hidden, DType dtype)
    : axis_(axis), residual_(options.residual), dtype_(dtype) {
  const device::AllocatesFor use(device::MemoryUse::tensor_parallel);
  const auto bytes = rows * hidden * size_of(dtype);
  for (auto& buffer : gathered_)
    buffer = axis.collectives->allocate_gathered(round_up((bytes + axis.size - 1) / axis.size));
  summand_ = axis.collectives->allocate_symmetric(bytes);
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

Tensor MeshTensorParallel::dense_summand(const Tensor& mine) const {
  const auto parts = residual_ == ResidualLayout::whole ? 1 : size();
  return summand_.tensor(dtype_, {parts * mine.rows(), mine.cols()});
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

model::ColumnBlocks MeshTensorParallel::summand(Tensor mine) {
  return as_blocks(dense_summand(mine));
}

device::Event MeshTensorParallel::reduce(Tensor mine) {
  auto& collectives = *axis_.collectives;
  collectives.set_subject("activations");
  const Tensor summands = dense_summand(mine);
  if (residual_ != ResidualLayout::whole)
    return collectives.reduce_scatter(mine, summands, Accumulate::no, compute_.record());
  // An all-reduce in its two halves, which works for every dtype.
  const Tensor all = next_gathered(mine);
  const auto part = all.numel() / size();
  const Tensor own = all.slice(rank() * part, part);
  const auto summed = collectives.reduce_scatter(own, summands, Accumulate::no, compute_.record());
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
