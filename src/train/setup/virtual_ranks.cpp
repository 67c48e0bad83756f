#include "train/setup/virtual_ranks.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "sharding/pipeline_stages.hpp"
#include "sharding/tensor_placements.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::train {
namespace {

/// Resolves an axis' key, and returns the virtual ranks for each rank along it.
int virtual_ranks_along(std::string_view axis, int& wanted, Reproducible reproducible, int ranks) {
  if (reproducible != Reproducible::mesh) {
    validate(wanted == 0,
             "train.reproducible_{} is {}, but train.reproducible is launch; set that to mesh",
             axis, wanted);
    return 1;
  }
  if (wanted == 0) wanted = ranks;
  validate(
      std::has_single_bit(static_cast<unsigned>(wanted)) && wanted % ranks == 0,
      "train.reproducible_{} is {}, which is no power of two that mesh.axes.{} {} divides; use "
      "{} or {}",
      axis, wanted, axis, ranks, ranks, 2 * ranks);
  return wanted / ranks;
}

/// Formats "train.reproducible_tensor is 8 and train.reproducible_context 2".
std::string describe(const Inputs& in) {
  return fmt::format("train.reproducible_tensor is {} and train.reproducible_context {}",
                     in.train.reproducible_tensor, in.train.reproducible_context);
}

/// Checks what virtual ranks can compute.
void check_virtual_ranks(const Inputs& in, const comm::ParallelDims& mesh,
                         const sharding::VirtualRanks& ranks) {
  const int wanted = in.train.reproducible_tensor;
  validate(!in.sharding.spec,
           "{}, but sharding.spec places weights on {} tensor ranks; leave one of them out",
           describe(in), mesh.group_size(mesh.tensor()));
  validate(ranks.tensor == 1 || in.model.vocab_size % wanted == 0,
           "train.reproducible_tensor is {}, which does not divide model.vocab_size {}; start {} "
           "tensor ranks (mesh.axes.tensor={})",
           wanted, in.model.vocab_size, wanted, wanted);
  validate(mesh.group_size(mesh.pipeline()) == 1 || wanted == 1 ||
               in.tensor.residual == sharding::ResidualLayout::sequence,
           "train.reproducible_tensor is {}, and pipeline stages send virtual ranks' rows, but "
           "tensor.residual is {}; use mesh.axes.pipeline=1",
           wanted, name_in_inputs(in.tensor.residual));
  if (ranks.context == 1) return;
  const int tensor = mesh.group_size(mesh.tensor());
  validate(tensor == 1,
           "{}, but gradients of virtual context ranks are first summed over tensor ranks, which "
           "must be virtual, too; use mesh.axes.tensor=1 in place of {}",
           describe(in), tensor);
}

/// Returns the mesh with so many ranks along its innermost axes.
comm::ParallelDims virtual_mesh(const comm::ParallelDims& mesh, int context, int tensor) {
  std::vector<comm::MeshAxis> axes;
  for (const auto& axis : mesh.axes())
    if (axis.name != "context" && axis.name != "tensor") axes.push_back(axis);
  axes.emplace_back("context", context);
  axes.emplace_back("tensor", tensor);
  return comm::ParallelDims(std::move(axes));
}

}  // namespace

sharding::VirtualRanks virtual_ranks_of(Inputs& in, const comm::ParallelDims& mesh) {
  const auto along = [&](std::string_view axis, int& wanted) {
    return virtual_ranks_along(axis, wanted, in.train.reproducible,
                               mesh.group_size(mesh.named({axis})));
  };
  sharding::VirtualRanks ranks;
  ranks.context = along("context", in.train.reproducible_context);
  ranks.tensor = along("tensor", in.train.reproducible_tensor);
  if (ranks.count() > 1) check_virtual_ranks(in, mesh, ranks);
  return ranks;
}

std::unique_ptr<const sharding::ShardLayout> virtual_layout_of(
    const Inputs& in, const sharding::ShardLayout& real,
    const std::vector<model::LayerRange>& chunks) {
  const auto& table = real.table();
  const auto divided = sharding::tensor_axis_for(
      table,
      virtual_mesh(real.dims(), in.train.reproducible_context, in.train.reproducible_tensor));
  sharding::check_residual(
      table, divided, in.tensor,
      in.train.micro_batch * in.data.sequence_length / in.train.reproducible_context);
  auto placements =
      sharding::tensor_parallel_placements(table, divided, in.tensor, in.sharding.strategy);
  sharding::place_in_stages(placements, table, divided, chunks);
  auto units = sharding::make_units(table, in.sharding.wrap, divided, placements);
  return std::make_unique<const sharding::ShardLayout>(table, std::move(units), divided,
                                                       std::move(placements));
}

std::vector<int> members_of(const comm::ParallelDims& mesh, const sharding::VirtualRanks& ranks,
                            int rank) {
  const int contexts = mesh.group_size(mesh.context()), tensors = mesh.group_size(mesh.tensor());
  const int tensor = rank % tensors, context = rank / tensors % contexts;
  const int others = rank / tensors / contexts;
  std::vector<int> members;
  for (int turn = 0; turn < ranks.count(); ++turn)
    members.push_back(((others * contexts + context) * ranks.context + ranks.context_of(turn)) *
                          tensors * ranks.tensor +
                      tensor * ranks.tensor + ranks.tensor_of(turn));
  return members;
}

}  // namespace llamesh::train
