#pragma once

#include <cmath>

#include "model/description/model_config.hpp"
#include "optim/optimizer.hpp"
#include "optim/outer_optimizer.hpp"
#include "sharding/fsdp.hpp"
#include "sharding/mesh_tensor_parallel.hpp"
#include "sharding/tensor_placements.hpp"
#include "support.hpp"

namespace llamesh::test {

/// Odd sizes: matrices are split in the middle, and with four ranks some own padding only.
inline model::ModelConfig tiny_model() {
  model::ModelConfig c;
  c.hidden_size = 12;
  c.intermediate_size = 20;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  c.vocab_size = 5;
  return c.resolved();
}

/// Mesh sizes [replicate, shard, expert, context, tensor], and the residual layout over the tensor
/// axis.
struct MeshSizes {
  int replicate;
  int shard;
  int tensor = 1;
  sharding::ResidualLayout residual = sharding::ResidualLayout::sequence;
  int expert = 1;
  int context = 1;
  bool apart = false;  ///< the replicas train apart
  int data_ranks() const { return replicate * shard * expert; }
  int ranks() const { return data_ranks() * context * tensor; }
};

/// A model's parameters, sharded over all ranks of the test program.
class ShardedModel {
 public:
  ShardedModel(const model::ModelConfig& config, MeshSizes mesh,
               const optim::OptimizerOptions& optimizer = {},
               const std::vector<std::string>& freeze = {},
               sharding::Offload offload = sharding::Offload::none, DType parameters = DType::f32)
      : table_(frozen_table(config, freeze)),
        layout_(table_,
                sharding::make_units(table_, {}, dims_of(config, mesh), placements(config, mesh)),
                dims_of(config, mesh), placements(config, mesh)),
        mesh_(world(), comm::discover_topology(world(), 0), layout_.dims()),
        state_(layout_, mesh_, {.parameters = parameters}, optim::moments_of(optimizer),
               offloading(offload), optim::outer_tensors_of(optimizer.outer)),
        fsdp_(state_, mesh_, offloading(offload), {}) {}

  const model::ParameterTable& table() const { return table_; }
  const sharding::ShardLayout& layout() const { return layout_; }
  sharding::ShardedState& state() { return state_; }
  sharding::Fsdp& fsdp() { return fsdp_; }
  comm::DeviceMesh& mesh() { return mesh_; }
  int data_rank() const {
    return layout_.dims().rank_in_group(layout_.dims().batch_axes(), state_.rank());
  }

  /// Calls visit(unit, piece) for everything that this rank owns.
  template <class Visit>
  void for_each_piece(Visit visit) const {
    for (std::size_t u = 0; u < layout_.units().size(); ++u)
      for (const auto& piece : layout_.pieces(u, state_.rank())) visit(u, piece);
  }
  /// Returns the norm of the whole gradient, the same on every rank. Collective.
  double gradient_norm() const { return std::sqrt(world().sum(optim::squared_norm_share(state_))); }
  /// Returns the largest magnitude in the padding of this rank's unit shard.
  float padding_of(std::size_t unit, const Tensor& shard) const {
    const auto pieces = layout_.pieces(unit, state_.rank());
    const std::int64_t used = pieces.empty() ? 0 : pieces.back().offset + pieces.back().count;
    float largest = 0;
    for (std::int64_t i = used; i < shard.numel(); ++i) {
      const float magnitude = std::abs(shard.as<float>()[i]);
      if (!(magnitude <= largest)) largest = magnitude;  // also if it is NaN
    }
    return largest;
  }

 private:
  static sharding::ShardingOptions offloading(sharding::Offload offload) {
    sharding::ShardingOptions options;
    options.offload = offload;
    return options;
  }
  static model::ParameterTable frozen_table(const model::ModelConfig& config,
                                            const std::vector<std::string>& freeze) {
    auto table = model::parameter_table(config);
    model::freeze_parameters(table, config, {freeze, {}});
    return table;
  }
  static sharding::Placements placements(const model::ModelConfig& config, MeshSizes mesh) {
    return sharding::tensor_parallel_placements(model::parameter_table(config),
                                                dims_of(config, mesh), {mesh.residual});
  }
  static comm::ParallelDims dims_of(const model::ModelConfig& config, MeshSizes mesh) {
    std::vector<comm::MeshAxis> axes{{"replicate", mesh.replicate}, {"shard", mesh.shard}};
    if (mesh.expert > 1) axes.push_back({"expert", mesh.expert});
    if (mesh.context > 1) axes.push_back({"context", mesh.context});
    axes.push_back({"tensor", mesh.tensor});
    const auto dims = sharding::tensor_axis_for(model::parameter_table(config),
                                                comm::ParallelDims(std::move(axes)));
    return mesh.apart ? dims.with_replicas_apart("replicate") : dims;
  }

  model::ParameterTable table_;
  sharding::ShardLayout layout_;
  comm::DeviceMesh mesh_;
  sharding::ShardedState state_;
  sharding::Fsdp fsdp_;
};

}  // namespace llamesh::test
