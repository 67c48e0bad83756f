#include "sharding/compile_spec.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/dtype.hpp"

namespace llamesh::sharding {
namespace {

/// Formats a placement: "[tensor, null], flat over shard".
std::string axes_of(const Placement& placement, const comm::ParallelDims& dims) {
  std::vector<std::string> parts, dim_names;
  for (const auto& axes : placement.split) {
    const auto names = comm::to_string(dims.without_ones(axes), dims);
    dim_names.push_back(names.empty() ? "null" : names);
  }
  if (dims.group_size(placement.split_axes()) > 1)
    parts.push_back(fmt::format("[{}]", fmt::join(dim_names, ", ")));
  if (dims.group_size(placement.sharded) > 1)
    parts.push_back("flat over " + comm::to_string(dims.without_ones(placement.sharded), dims));
  if (parts.empty()) parts.emplace_back("whole");
  if (!placement.stages.empty()) parts.push_back(stages_text(placement.stages));
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Returns the bytes of fp32 weight per rank, as if its flat shard ended with this weight.
std::int64_t bytes_on_a_rank(const ShardLayout& layout, ParameterId id) {
  const std::int64_t shards = layout.dims().group_size(layout.placement(id).sharded);
  return (numel(layout.local_shape(id)) + shards - 1) / shards * size_of(DType::f32);
}

/// A weight, or the same weight in several layers.
struct Row {
  std::string name;  ///< for a layer's weight, the part after the layer number
  std::string rest;  ///< shapes and axes
  std::int64_t bytes;
  bool operator==(const Row&) const = default;
};
/// Rows for weights outside the layers, or for one layer or several equal ones.
struct Block {
  bool is_layer;
  std::size_t first, layers;
  std::vector<Row> rows;
};

Row row_of(const ShardLayout& layout, ParameterId id, std::size_t hidden) {
  const auto& parameter = layout.table()[id];
  return {parameter.name.substr(hidden),
          fmt::format(
              "{:>16} {:>16}  {:<34}", fmt::format("{}", fmt::join(parameter.shape, " x ")),
              fmt::format("{}", fmt::join(layout.local_shape(id), " x ")),
              axes_of(layout.placement(id), layout.dims()) + (parameter.frozen ? ", frozen" : "")),
          bytes_on_a_rank(layout, id)};
}

std::vector<Block> blocks_of(const ShardLayout& layout, Layers folded) {
  std::vector<Block> blocks;
  const auto& table = layout.table();
  std::size_t layer = 0;  // the next layer that may begin
  for (std::size_t p = 0; p < table.parameters.size(); ++p) {
    const auto& name = table.parameters[p].name;
    const auto prefix = [&](std::size_t l) {
      return l < table.layers.size() ? table[table.layers[l]].name + '.' : std::string("/");
    };
    if (name.starts_with(prefix(layer))) blocks.push_back({true, layer++, 1, {}});
    const bool inside = layer > 0 && name.starts_with(prefix(layer - 1));
    if (blocks.empty() || (blocks.back().is_layer && !inside)) blocks.push_back({false, 0, 1, {}});
    blocks.back().rows.push_back(
        row_of(layout, static_cast<ParameterId>(p), inside ? prefix(layer - 1).size() : 0));
  }
  if (folded == Layers::each) return blocks;
  std::vector<Block> fewer;
  for (auto& block : blocks)
    if (!fewer.empty() && block.is_layer && fewer.back().is_layer &&
        fewer.back().rows == block.rows)
      ++fewer.back().layers;
    else
      fewer.push_back(std::move(block));
  return fewer;
}

std::string text_of(ResidualLayout residual) {
  using enum ResidualLayout;
  return residual == sequence ? "divided by rows (sequence)"
         : residual == hidden ? "divided by columns (hidden)"
                              : "whole";
}

std::string name_of(const std::string& layer_prefix, const Block& block, const Row& row) {
  if (!block.is_layer) return row.name;
  const auto last = block.layers == 1 ? "" : fmt::format("..{}", block.first + block.layers - 1);
  return fmt::format("{}{}{}.{}", layer_prefix, block.first, last, row.name);
}

}  // namespace

std::string describe_spec(const ShardLayout& layout, std::string_view name, ResidualLayout residual,
                          Layers layers) {
  const int tensor = layout.dims().group_size(layout.dims().tensor());
  std::string text = fmt::format("spec {}, mesh {}{}\n{:<52} {:>16} {:>16}  {:<34} {:>16}\n", name,
                                 comm::to_string(layout.dims()),
                                 tensor > 1 ? ", residual stream " + text_of(residual) : "",
                                 "weight", "shape", "on a rank", "divided", "bytes on a rank");
  for (const auto& block : blocks_of(layout, layers))
    for (const auto& row : block.rows)
      text += fmt::format("{:<52} {} {:>16}\n", name_of(layout.table().layer_prefix, block, row),
                          row.rest,
                          block.layers == 1 ? fmt::format("{}", row.bytes)
                                            : fmt::format("{} x {}", block.layers, row.bytes));
  text += fmt::format("{:<52} {:>16} {:>16}  {:<34} {:>16}\n",
                      fmt::format("{} weights", layout.table().parameters.size()),
                      layout.table().numel(), layout.shard_numel(), "in flat shards, padded",
                      layout.shard_numel() * size_of(DType::f32));
  if (const auto trained = layout.table().trained_numel(); trained < layout.table().numel())
    text += fmt::format(
        "{} elements are trained, {} are frozen: a rank keeps these in the compute dtype only\n",
        trained, layout.table().numel() - trained);
  const auto whole = describe_whole(layout);
  return whole.empty() ? text : text + whole + '\n';
}

std::string describe_whole(const ShardLayout& layout) {
  const auto& dims = layout.dims();
  std::vector<std::string> names;
  std::int64_t elements = 0;
  for (std::size_t p = 0; p < layout.table().parameters.size(); ++p) {
    const auto& placement = layout.placement(static_cast<ParameterId>(p));
    if ((placement.sharded | placement.split_axes()).any()) continue;
    names.push_back(layout.table().parameters[p].name);
    elements += layout.table().parameters[p].numel();
  }
  if (names.empty() || dims.ranks() == 1) return "";
  constexpr std::size_t most = 3;
  const auto more = names.size() > most ? fmt::format(" and {} more", names.size() - most) : "";
  const auto count = names.size();
  names.resize(std::min(count, most));
  return fmt::format(
      "the spec leaves {} of {} weights whole on every rank, {} bytes of them in fp32 and {} with "
      "gradients and moments: {}{}",
      count, layout.table().parameters.size(), elements * size_of(DType::f32),
      4 * elements * size_of(DType::f32), fmt::join(names, ", "), more);
}

}  // namespace llamesh::sharding
