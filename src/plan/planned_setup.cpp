#include "plan/step_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "comm/mpi/exchange.hpp"

namespace llamesh::plan {
namespace {

using sharding::KeepBf16Weights;

constexpr double max_of_device = 0.9;

double in_mebibytes(double bytes) {
  return bytes / (1 << 20);
}

}  // namespace

StepPlan plan_bf16_weights(train::Setup& setup, double limit,
                           const std::function<StepPlan()>& plan) {
  auto& in = setup.inputs;
  auto& keep = in.sharding.keep_bf16_weights;
  if (keep != KeepBf16Weights::automatic || in.precision.parameters != DType::bf16 ||
      in.sharding.offload != sharding::Offload::none)
    return plan();
  keep = KeepBf16Weights::yes;
  auto planned = plan();
  const auto peak = static_cast<double>(planned.peak);
  bool fits = peak <= max_of_device * limit;
  std::optional<StepPlan> of_cast;
  if (!fits) {
    keep = KeepBf16Weights::no;
    of_cast = plan();
    // If all units stay gathered anyway, kept weights take no extra memory.
    fits = of_cast->peak >= planned.peak;
  }
  setup.bf16_weights = fmt::format(
      "bf16 weights are {} a step {} {:.1f} of {:.1f} MiB{}",
      fits ? "kept beside their fp32 masters:" : "cast from fp32 at each gather: with kept ones",
      fits ? "takes" : "would take", in_mebibytes(peak), in_mebibytes(limit),
      fits ? "" : ", of which a tenth is to stay free (sharding.keep_bf16_weights)");
  keep = fits ? KeepBf16Weights::yes : KeepBf16Weights::no;
  return fits ? std::move(planned) : std::move(*of_cast);
}

train::Setup make_planned_setup(const comm::Communicator& world, const train::Inputs& inputs) {
  auto setup = train::make_setup(world, inputs);
  setup.plan_memory = plan_on_this_device;
  std::int64_t limit = 0;
  comm::agree(world, [&] { limit = device_limit(setup, world.rank()); });
  limit = world.min(limit, "the memory of the devices");
  plan_bf16_weights(setup, static_cast<double>(limit), [&] {
    StepPlan planned;
    comm::agree(world, [&] {
      const auto threads = std::max(1, setup.inputs.train.threads);
      planned = plan_on_this_device(setup, world.rank(), threads);
    });
    planned.peak = world.max(planned.peak, "planned memory");
    return planned;
  });
  return setup;
}

}  // namespace llamesh::plan
