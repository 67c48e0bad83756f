#include "sharding/tensor_placements.hpp"

#include "core/error.hpp"

namespace llamesh::sharding {
comm::ParallelDims tensor_axis_for(const model::ParameterTable& table,
                                   const comm::ParallelDims& dims) {
  const int ranks = dims.group_size(dims.tensor());
  for (const auto& parameter : table.parameters) {
    const auto& blocks = parameter.blocks;
    if (!blocks.may_be_shared || ranks <= blocks.count || ranks % blocks.count != 0) continue;
    return dims.split("tensor", ranks / static_cast<int>(blocks.count));
  }
  return dims;
}

void divide(Placement& placement, const model::Parameter& parameter,
            const comm::ParallelDims& dims) {
  if (model::has_partial_gradient(parameter.role)) placement.partial = dims.tensor();
  const auto dim = model::divided_dim(parameter);
  if (!dim) return;
  placement.split[*dim] = dims.tensor();
  if (!parameter.blocks.may_be_shared) return;
  // Each of the ranks that share a block has the gradient by its own heads' queries.
  placement.split[*dim] &= ~dims.inner("tensor");
  placement.partial = dims.inner("tensor");
}

void place_along_residual(Placement& placement, const model::Parameter& parameter,
                          const comm::ParallelDims& dims, ResidualLayout residual) {
  const auto dim = model::residual_dim(parameter);
  if (!dim) return;
  if (residual == ResidualLayout::sequence) placement.partial = dims.tensor();
  if (residual == ResidualLayout::hidden) placement.split[*dim] = dims.tensor();
}

Placements tensor_parallel_placements(const model::ParameterTable& table,
                                      const comm::ParallelDims& dims, const TensorOptions& options,
                                      Strategy strategy) {
  auto placements = whole_and_sharded(table, dims);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    auto& placement = placements[i];
    const auto& parameter = table.parameters[i];
    if (model::is_stacked(parameter.role)) placement.split[0] = dims.named({"expert"});
    if (dims.group_size(dims.tensor()) > 1) {
      divide(placement, parameter, dims);
      place_along_residual(placement, parameter, dims, options.residual);
    }
    if (strategy != Strategy::no_shard && !model::is_fp32(parameter.role))
      placement.sharded |= dims.named({"expert", "context"}) & ~placement.split_axes();
  }
  return placements;
}

void check_residual(const model::ParameterTable& table, const comm::ParallelDims& dims,
                    const TensorOptions& options, std::int64_t rows) {
  const int ranks = dims.group_size(dims.tensor());
  if (ranks == 1) return;
  const auto hidden = table[table.embed_tokens.weight].shape[1];
  const bool takes_hidden = !table.norm.centers && !table.positions;
  validate(options.residual != ResidualLayout::hidden || takes_hidden,
           "tensor.residual=hidden is for models with RMSNorm and RoPE; use sequence or whole");
  if (options.residual == ResidualLayout::sequence)
    validate(rows % ranks == 0,
             "the {} tokens of a micro-batch cannot be divided among {} ranks (mesh.axes.tensor); "
             "change train.micro_batch or data.sequence_length, or set tensor.residual to {}",
             rows, ranks, takes_hidden ? "hidden or whole" : "whole");
  else if (options.residual == ResidualLayout::hidden)
    validate(hidden % ranks == 0,
             "model.hidden_size {} cannot be divided among {} ranks (mesh.axes.tensor), as "
             "tensor.residual=hidden does; use sequence or whole",
             hidden, ranks);
}

TensorShard tensor_shard(const model::ParameterTable& table, const comm::ParallelDims& dims,
                         int rank) {
  const auto mesh = tensor_axis_for(table, dims);
  const auto placements = tensor_parallel_placements(table, mesh, {});
  TensorShard shard{local_table(table, mesh, placements), {}};
  const auto hidden = table[table.embed_tokens.weight].shape[1];
  const int ranks = dims.group_size(dims.tensor());
  validate(hidden % ranks == 0, "model.hidden_size {} is not divisible by {} ranks", hidden, ranks);
  for (std::size_t i = 0; i < placements.size(); ++i)
    shard.parts.push_back(
        part(placements[i], mesh, table.parameters[i], part_of(placements[i], mesh, rank)));
  return shard;
}

}  // namespace llamesh::sharding
