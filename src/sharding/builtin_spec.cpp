#include <set>
#include <utility>

#include "core/error.hpp"
#include "sharding/compile_spec.hpp"
#include "sharding/tensor_placements.hpp"

// The spec behind every strategy, and the check that training can compute a spec.

namespace llamesh::sharding {

void check_implemented(const ShardLayout& layout, ResidualLayout residual) {
  const auto& dims = layout.dims();
  if (dims.group_size(dims.tensor()) == 1) return;
  const auto& table = layout.table();
  const auto megatron = tensor_parallel_placements(table, dims, {residual});
  for (std::size_t i = 0; i < megatron.size(); ++i) {
    const auto& cut = layout.placement(static_cast<ParameterId>(i)).split;
    // If the residual stream is split by columns, the embedding may be looked up by columns.
    const bool is_embedding = i == model::index(table.embed_tokens.weight);
    if (is_embedding && residual == ResidualLayout::hidden && cut[0].none()) continue;
    validate(cut == megatron[i].split,
             "sharding.spec: {} is not cut as Megatron does; on a mesh with an axis tensor that is "
             "not implemented: write {} for it",
             table.parameters[i].name,
             megatron[i].split[0].any() ? "[tensor, shard]" : "[shard, tensor]");
  }
}

Spec builtin_spec(const model::ParameterTable& table, const comm::ParallelDims& dims,
                  ResidualLayout residual) {
  using Axes = std::vector<std::string>;
  const bool divides = dims.group_size(dims.tensor()) > 1;
  const Axes whole, tensor{"tensor"};
  Spec spec;
  const auto add = [&](std::string name, std::vector<Axes> axes) {
    spec.entries.push_back({std::move(name), std::move(axes), "built in"});
  };
  const auto any_layer = table.layer_prefix + '*';
  std::set<std::string> in_layers;  // not all kinds of layers have the same
  for (const auto& parameter : table.parameters) {
    std::vector<Axes> axes(parameter.shape.size());
    const auto dim = divides ? model::divided_dim(parameter) : std::nullopt;
    if (dim) axes[*dim] = tensor;
    axes[dim == std::size_t{0} && axes.size() > 1 ? 1 : 0].push_back("shard");
    if (!parameter.name.starts_with(table.layer_prefix)) {
      add(parameter.name, axes);
      continue;
    }
    const auto in_layer =
        parameter.name.substr(parameter.name.find('.', table.layer_prefix.size()));
    if (in_layers.insert(in_layer).second) add(any_layer + in_layer, axes);
  }
  const auto along = [&](ResidualLayout where) {
    return divides && residual == where ? tensor : whole;
  };
  add(any_layer,
      {{"replicate", "shard"}, along(ResidualLayout::sequence), along(ResidualLayout::hidden)});
  return spec;
}

}  // namespace llamesh::sharding
