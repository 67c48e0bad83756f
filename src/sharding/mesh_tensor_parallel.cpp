#include "sharding/mesh_tensor_parallel.hpp"

#include "core/error.hpp"
#include "ops/ops.hpp"

namespace llamesh::sharding {
namespace {

constexpr std::int64_t alignment = 64;  // of a rank's part of a gathered buffer

std::int64_t round_up(std::int64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

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
    // Each rank has the norm's output, and so its part of the gradient, for its own rows.
    if (options.residual == ResidualLayout::sequence) of(leaf).partial = tensor;
  };
  of(table.embed_tokens).cut[0] = tensor;
  of(table.lm_head).cut[0] = tensor;
  norm(table.norm);
  for (const auto& layer : table.layers) {
    for (const auto& leaf :
         {layer.q_proj, layer.k_proj, layer.v_proj, layer.gate_proj, layer.up_proj})
      of(leaf).cut[0] = tensor;
    for (const auto& leaf : {layer.o_proj, layer.down_proj}) of(leaf).cut[1] = tensor;
    norm(layer.input_norm);
    norm(layer.post_attention_norm);
  }
  return placements;
}

void check_tensor_parallel(const model::LlamaConfig& config, const comm::ParallelDims& dims,
                           const TensorOptions& options, std::int64_t rows) {
  const int ranks = dims.group_size(dims.tensor());
  config.divided_among(ranks);
  if (options.residual == ResidualLayout::sequence)
    validate(rows % ranks == 0,
             "the {} tokens of a micro-batch cannot be divided among {} ranks (mesh.axes.tensor); "
             "change train.micro_batch or data.sequence_length, or set tensor.residual=whole",
             rows, ranks);
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

std::int64_t MeshTensorParallel::residual_rows(std::int64_t rows) const {
  if (residual_ == ResidualLayout::whole) return rows;
  expects(rows % size() == 0, "{} rows among {} ranks", rows, size());
  return rows / size();
}

Tensor MeshTensorParallel::next_gathered(std::int64_t rows, std::int64_t hidden) {
  next_ = (next_ + 1) % gathered_.size();
  return gathered_[next_].tensor(dtype_, {rows, hidden});
}

model::TensorParallel::Gathered MeshTensorParallel::gather(Tensor mine) {
  if (residual_ == ResidualLayout::whole) return {mine, {}};
  const Tensor all = next_gathered(mine.rows() * size(), mine.cols());
  return {all, all_gather(all, mine)};
}

Tensor MeshTensorParallel::summand(Tensor mine) {
  const auto rows = residual_ == ResidualLayout::whole ? mine.rows() : mine.rows() * size();
  return summand_.tensor(dtype_, {rows, mine.cols()});
}

device::Event MeshTensorParallel::reduce(Tensor mine) {
  auto& collectives = *axis_.collectives;
  collectives.set_subject("activations");
  const Tensor summands = summand(mine);
  if (residual_ == ResidualLayout::sequence)
    return collectives.reduce_scatter(mine, summands, Accumulate::no, compute_.record());
  // An all-reduce in two parts, which is what it is, for every dtype.
  const Tensor all = next_gathered(mine.rows(), mine.cols());
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
