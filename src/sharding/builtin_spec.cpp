#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "sharding/compile_spec.hpp"
#include "sharding/tensor_placements.hpp"

// The spec behind every strategy, and the check that training can compute a spec.

namespace llamesh::sharding {

namespace {

using Axes = std::vector<std::string>;

/// Returns the axes among these with 2 or more ranks.
Axes names_of(const comm::ParallelDims& dims, comm::AxisSet set) {
  Axes names;
  for (const auto& axis : dims.axes())
    if ((set & dims.named({axis.name})).any() && axis.size > 1) names.push_back(axis.name);
  return names;
}

/// Returns the entry for a weight with these axes on its dims: the data axes are on the first dim
/// that no axis splits, else beside the first one's axis.
std::vector<Axes> entry_with(std::vector<Axes> split, const Axes& data) {
  const auto free = std::ranges::find_if(split, [](const Axes& axes) { return axes.empty(); });
  auto& dim = free == split.end() ? split.front() : *free;
  dim.insert(dim.end(), data.begin(), data.end());
  return split;
}

bool has_axis(const comm::ParallelDims& dims, std::string_view name) {
  return dims.group_size(dims.named({name})) > 1;
}

/// Returns the name of a weight with `*` for its layer's number.
std::string any_number(const std::string& name, const std::string& layer_prefix) {
  if (!name.starts_with(layer_prefix)) return name;
  return layer_prefix + '*' + name.substr(name.find('.', layer_prefix.size()));
}

/// Throws unless `expert` splits a stack of experts, and `tensor` splits the dims that it splits in
/// `builtin`.
void check_split(const model::Parameter& parameter, const Placement& placement,
                 const Placement& builtin, const comm::ParallelDims& dims) {
  const auto expert = dims.named({"expert"});
  const bool splits_experts = model::is_stacked(parameter.role) && has_axis(dims, "expert");
  const auto advice = [&] {
    std::vector<Axes> split;
    for (const auto& axes : builtin.split) split.push_back(names_of(dims, axes & ~expert));
    if (splits_experts) split.front() = {"expert"};
    Axes shard{"shard"};
    if (has_axis(dims, "expert") && !splits_experts) shard.push_back("expert");
    if (has_axis(dims, "context")) shard.push_back("context");
    return to_string(entry_with(std::move(split), shard));
  };
  validate(!splits_experts || (expert & ~placement.split.front()).none(),
           "sharding.spec: {} is whole along the axis expert, on which each rank must have its own "
           "experts: write {} for it",
           parameter.name, advice());
  const auto is_as_builtin = [&](const comm::AxisSet& axes, const comm::AxisSet& expected) {
    return (axes & dims.tensor()) == (expected & dims.tensor());
  };
  validate(std::ranges::equal(placement.split, builtin.split, is_as_builtin),
           "sharding.spec: {} is not cut as Megatron does; on a mesh with an axis tensor that is "
           "not implemented: write {} for it",
           parameter.name, advice());
}

}  // namespace

void check_implemented(const ShardLayout& layout, ResidualLayout residual) {
  const auto& dims = layout.dims();
  if (!has_axis(dims, "tensor") && !has_axis(dims, "expert")) return;
  const auto& table = layout.table();
  const auto builtin = tensor_parallel_placements(table, dims, {residual});
  for (std::size_t i = 0; i < builtin.size(); ++i) {
    const auto& placement = layout.placement(static_cast<ParameterId>(i));
    // If the residual stream is split by columns, the embedding may be looked up by columns.
    const bool is_embedding = i == model::index(table.embed_tokens.weight);
    if (is_embedding && residual == ResidualLayout::hidden && placement.split[0].none()) continue;
    check_split(table.parameters[i], placement, builtin[i], dims);
  }
}

Spec builtin_spec(const model::ParameterTable& table, const comm::ParallelDims& dims,
                  ResidualLayout residual, Strategy strategy) {
  const bool has_tensor = has_axis(dims, "tensor"), has_experts = has_axis(dims, "expert");
  const bool has_context = has_axis(dims, "context");
  const Axes tensor{"tensor"}, expert{"expert"};
  Axes shard{"shard"}, data = shard;  // of stacked experts, and of all else
  if (strategy != Strategy::no_shard) {
    if (has_experts) data.push_back("expert");
    if (has_context) shard.push_back("context"), data.push_back("context");
  }
  Spec spec;
  std::set<std::string> added;  // layers have weights of the same name
  const auto add = [&](const std::string& name, std::vector<Axes> axes) {
    if (added.insert(name).second) spec.entries.push_back({name, std::move(axes), "built in"});
  };
  for (const auto& parameter : table.parameters) {
    std::vector<Axes> split(parameter.shape.size());
    const bool stacked = model::is_stacked(parameter.role);
    if (stacked && has_experts) split.front() = expert;
    if (const auto dim = model::divided_dim(parameter); dim && has_tensor) split[*dim] = tensor;
    const auto axes = entry_with(std::move(split), stacked ? shard : data);
    add(any_number(parameter.name, table.layer_prefix), axes);
  }
  const auto along = [&](ResidualLayout where) {
    Axes axes;
    if (has_context && where == ResidualLayout::sequence) axes.push_back("context");
    if (has_tensor && residual == where) axes.push_back("tensor");
    return axes;
  };
  Axes batch{"replicate", "shard"};
  if (has_experts) batch.push_back("expert");
  add(table.layer_prefix + '*',
      {batch, along(ResidualLayout::sequence), along(ResidualLayout::hidden)});
  return spec;
}

}  // namespace llamesh::sharding
