#pragma once

#include "model/description/model_config.hpp"
#include "sharding/placement.hpp"

namespace llamesh::test {

/// A small model whose dims are all even.
inline model::ModelConfig even_config() {
  model::ModelConfig c;
  c.hidden_size = 12;
  c.intermediate_size = 20;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 2;
  c.vocab_size = 38;
  return c.resolved();
}

/// Placements that no strategy has: parameters in turn are split along `tensor` by their first dim,
/// by their last dim, or not at all, and sharded along `shard`.
inline sharding::Placements cut_in_turn(const model::ParameterTable& table,
                                        const comm::ParallelDims& dims) {
  auto placements = sharding::whole_and_sharded(table, dims);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    auto& cut = placements[i].split;
    if (i % 3 == 0) cut.front() = dims.named({"tensor"});
    if (i % 3 == 1) cut.back() = dims.named({"tensor"});
  }
  return placements;
}

/// Placements of a mixture of experts, whose ranks along the innermost axis read other data: one
/// parameter after another is divided along it (experts), flat-sharded along it too, or copied.
inline sharding::Placements divided_along_expert(const model::ParameterTable& table,
                                                 const comm::ParallelDims& dims) {
  auto placements = sharding::whole_and_sharded(table, dims);
  const auto innermost = dims.named({dims.axes().back().name});
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (i % 3 == 0) placements[i].split.front() = innermost;
    if (i % 3 == 1) placements[i].sharded |= innermost;
  }
  return placements;
}

/// Placements in which a spec leaves some weights unsharded: some in every unit except the
/// embedding's. One weight is sharded along `replicate` too.
inline sharding::Placements sharded_in_part(const model::ParameterTable& table,
                                            const comm::ParallelDims& dims) {
  auto placements = sharding::whole_and_sharded(table, dims);
  for (std::size_t i = 1; i < placements.size(); i += 2) placements[i].sharded.reset();
  placements[2].sharded = dims.gradient_axes();
  return placements;
}

}  // namespace llamesh::test
