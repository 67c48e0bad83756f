#pragma once

#include <functional>

#include "comm/mesh/communicator.hpp"
#include "plan/step_plan.hpp"
#include "train/run/setup.hpp"

namespace llamesh::plan {

/// Resolves `sharding.keep_bf16_weights: auto`. bf16 weights are kept if the peak-memory rank's
/// step, which `plan()` plans from the current setup, then takes at most nine tenths of `limit`
/// bytes, or no more than without them. The rest is for memory that no plan knows: a GPU's context,
/// NCCL, cuDNN's scratch. Records the choice in the setup's inputs and in a log line, and returns
/// the resulting plan. If there is nothing to choose, it returns `plan()`.
StepPlan plan_bf16_weights(train::Setup& setup, double limit,
                           const std::function<StepPlan()>& plan);

/// Plans the whole run: make_setup(), then `sharding.keep_bf16_weights: auto` against every rank's
/// device memory, all ranks alike. Sets Setup::plan_memory. Collective.
train::Setup make_planned_setup(const comm::Communicator& world, const train::Inputs& inputs);

}  // namespace llamesh::plan
