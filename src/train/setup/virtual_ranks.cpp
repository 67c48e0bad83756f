#include "train/setup/virtual_ranks.hpp"

#include <algorithm>
#include <bit>

#include "core/error.hpp"
#include "device/device.hpp"
#include "sharding/pipeline_stages.hpp"
#include "sharding/tensor_placements.hpp"
#include "sharding/wrap_policy.hpp"

namespace llamesh::train {
namespace {

constexpr const char* tensor_key = "train.reproducible_tensor";

/// Checks what virtual ranks can compute.
void check_virtual_ranks(const Inputs& in, const comm::ParallelDims& mesh, int ranks) {
  const int wanted = in.train.reproducible_tensor;
  validate(std::has_single_bit(static_cast<unsigned>(wanted)) && wanted % ranks == 0,
           "{} is {}, which is no power of two that mesh.axes.tensor {} divides; use {} or {}",
           tensor_key, wanted, ranks, ranks, 2 * ranks);
  validate(!in.sharding.spec, "{} is {}, but sharding.spec places weights on {} tensor ranks; {}",
           tensor_key, wanted, ranks, "leave one of them out");
  validate(in.model.vocab_size % wanted == 0,
           "{} is {}, which does not divide model.vocab_size {}; start {} tensor ranks "
           "(mesh.axes.tensor={})",
           tensor_key, wanted, in.model.vocab_size, wanted, wanted);
  validate(mesh.group_size(mesh.pipeline()) == 1 ||
               in.tensor.residual == sharding::ResidualLayout::sequence,
           "{} is {}, and pipeline stages send virtual ranks' rows, but tensor.residual is {}; use "
           "mesh.axes.pipeline=1",
           tensor_key, wanted, name_in_inputs(in.tensor.residual));
}

/// Returns the mesh with this many tensor ranks.
comm::ParallelDims with_tensor_ranks(const comm::ParallelDims& mesh, int ranks) {
  auto axes = mesh.axes();
  const auto tensor = std::ranges::find(axes, "tensor", &comm::MeshAxis::name);
  if (tensor == axes.end())
    axes.emplace_back("tensor", ranks);
  else
    tensor->size = ranks;
  return comm::ParallelDims(std::move(axes));
}

}  // namespace

void check_virtual_ranks_fit(const Inputs& in, int virtual_ranks) {
  validate(virtual_ranks == 1 || device::kind_of_kernels() == device::Kind::cpu,
           "{} is {}, and on GPUs each of these ranks needs its own; start {} times as many, with "
           "mesh.axes.tensor={}",
           tensor_key, in.train.reproducible_tensor, virtual_ranks, in.train.reproducible_tensor);
}

std::unique_ptr<const sharding::ShardLayout> virtual_tensor_layout(
    Inputs& in, const sharding::ShardLayout& real, const std::vector<model::LayerRange>& chunks) {
  int& wanted = in.train.reproducible_tensor;
  if (in.train.reproducible != Reproducible::mesh) {
    validate(wanted == 0, "{} is {}, but train.reproducible is launch; set that to mesh",
             tensor_key, wanted);
    return nullptr;
  }
  const auto& mesh = real.dims();
  const int ranks = mesh.group_size(mesh.tensor());
  if (wanted == 0) wanted = ranks;
  if (wanted == ranks) return nullptr;
  check_virtual_ranks(in, mesh, ranks);
  const auto& table = real.table();
  const auto divided = sharding::tensor_axis_for(table, with_tensor_ranks(mesh, wanted));
  sharding::check_residual(
      table, divided, in.tensor,
      in.train.micro_batch * in.data.sequence_length / mesh.group_size(mesh.context()));
  auto placements =
      sharding::tensor_parallel_placements(table, divided, in.tensor, in.sharding.strategy);
  sharding::place_in_stages(placements, table, divided, chunks);
  auto units = sharding::make_units(table, in.sharding.wrap, divided, placements);
  return std::make_unique<const sharding::ShardLayout>(table, std::move(units), divided,
                                                       std::move(placements));
}

}  // namespace llamesh::train
