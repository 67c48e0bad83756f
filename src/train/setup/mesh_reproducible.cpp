#include "train/setup/mesh_reproducible.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "ops/arithmetic.hpp"

namespace llamesh::train {
namespace {

constexpr const char* key = "train.reproducible is mesh";

void check_power_of_two(std::string_view name, std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  validate(std::has_single_bit(bits),
           "{}, which adds up powers of two, but {} is {}; use {} or {}, or "
           "train.reproducible=launch",
           key, name, value, std::bit_floor(bits), std::bit_ceil(bits));
}

/// Checks that matrices which a layer multiplies together, as neighbors in memory, stay in one
/// unit.
void check_units(const sharding::ShardLayout& layout) {
  const auto& table = layout.table();
  std::map<std::pair<model::ModuleId, bool>, model::ParameterId> first_of;  // by parent, and frozen
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto id = static_cast<model::ParameterId>(i);
    if (!table.is_linear(id)) continue;
    const auto parent = table[table[id].module].parent;
    const auto first = first_of.try_emplace({parent, table[id].frozen}, id).first->second;
    validate(layout.place(id).unit == layout.place(first).unit,
             "{}, but sharding.wrap is size and separates {} from {}, which other meshes multiply "
             "together; raise sharding.min_numel, or use sharding.wrap=layer",
             key, table[id].name, table[first].name);
  }
}

}  // namespace

void check_mesh_reproducible(const Inputs& in, const comm::ParallelDims& mesh) {
  const auto size = [&](const char* axis) { return mesh.group_size(mesh.named({axis})); };
  validate(size("expert") == 1,
           "{}, which knows no mesh.axes.expert, and that is {}; set it to 1, or use "
           "train.reproducible=launch",
           key, size("expert"));
  for (const auto* axis : {"replicate", "shard", "context", "tensor"})
    check_power_of_two(fmt::format("mesh.axes.{}", axis), size(axis));
  check_power_of_two("train.global_batch", in.train.global_batch);
  validate(in.precision.reduce == DType::f32,
           "{}, which adds up in fp32, but precision.reduce is bf16; use fp32", key);
  validate(in.sharding.gather == sharding::GatherDType::automatic &&
               in.sharding.reduce_dtype == sharding::ReduceDType::automatic,
           "{}, but the blocks in which sharding.gather and sharding.reduce_dtype quantize depend "
           "on the mesh; leave them out",
           key);
  validate(!in.optimizer.outer.enabled(),
           "{}, but with optimizer.outer the replicas of the mesh train apart; leave it out", key);
  validate(in.evaluate.batches == 0,
           "{}, but evaluate.batches counts batches of each rank, so another mesh would evaluate "
           "other sequences; use evaluate.sequences",
           key);
  validate(in.model.num_experts == 0 || !in.model.output_router_logits ||
               in.model.router_aux_loss_coef == 0,
           "{}, but model.output_router_logits adds a loss on the tokens that all ranks have at a "
           "time; set it to false",
           key);
  validate(
      mesh.group_size(mesh.pipeline()) == 1 || !in.model.tie_word_embeddings,
      "{}, but with mesh.axes.pipeline {} the tied embedding's two gradients are summed on two "
      "stages; use mesh.axes.pipeline=1, or untie it (model.tie_word_embeddings=false)",
      key, mesh.group_size(mesh.pipeline()));
}

std::string arithmetic_of(const Inputs& in) {
  auto text = ops::arithmetic();
  if (in.train.reproducible != Reproducible::mesh) return text;
  if (in.train.reproducible_tensor > 1)
    text += fmt::format(", {} tensor ranks with residual {}", in.train.reproducible_tensor,
                        name_in_inputs(in.tensor.residual));
  if (in.train.reproducible_context > 1)
    text += fmt::format(", {} context ranks", in.train.reproducible_context);
  if (in.memory.loss_chunk > 0)
    text += fmt::format(", losses for {} tokens at a time", in.memory.loss_chunk);
  return text;
}

int ranks_that_reduce_first(const Inputs& in, const sharding::ShardLayout& layout) {
  const auto& mesh = layout.dims();
  const auto context = mesh.without_ones(mesh.context());
  constexpr const char* parts_first =
      "{}, which adds up the parts of each sequence first, but {}; use {}";
  if (in.sharding.wrap.wrap == sharding::Wrap::size) check_units(layout);
  if (in.sharding.reduce == sharding::Reduce::last) {
    validate(context.none(), parts_first, key, "sharding.reduce is last",
             "each, or mesh.axes.context=1");
    return 1;
  }
  std::optional<comm::AxisSet> sharded;
  for (const auto& unit : layout.units()) {
    if (unit.frozen || unit.fp32) continue;  // fp32: biases of routers, without gradients
    validate((context & ~unit.sharded).none(), parts_first, key,
             "weights are not sharded along context", "full_shard or hybrid_shard");
    const auto axes = mesh.without_ones(unit.sharded & mesh.batch_axes());
    validate(
        !sharded || *sharded == axes,
        "{}, but sharding.spec shards some weights along '{}' and others along '{}'; shard all "
        "along the same axes, or set sharding.reduce=last",
        key, comm::to_string(*sharded, mesh), comm::to_string(axes, mesh));
    sharded = axes;
  }
  if (!sharded) return 0;
  const int ranks = mesh.group_size(*sharded);
  const auto batch = mesh.batch_axes();
  const auto group = mesh.group(*sharded, 0);
  validate(mesh.rank_in_group(batch, group.back()) == ranks - 1,
           "{}, but the weights are sharded along '{}' and not along the innermost axes; set "
           "sharding.reduce=last",
           key, comm::to_string(*sharded, mesh));
  return ranks;
}

}  // namespace llamesh::train
