#pragma once

#include <functional>

#include "comm/communicator.hpp"
#include "train/plan.hpp"
#include "train/setup.hpp"

namespace llamesh::train {

/// What `sharding.keep_bf16_weights: auto` comes to: bf16 weights are kept where the step of the
/// fullest rank, which `plan()` plans by the setup as it stands, takes at most nine tenths of
/// `limit` bytes with them, or no more than without. The rest is for what no plan knows: a GPU's
/// context, NCCL, cuDNN's scratch. Records the choice in the setup's inputs, and in a line for the
/// log, and returns the plan by it. Where there is nothing to choose this is `plan()`.
StepPlan plan_bf16_weights(Setup& setup, double limit, const std::function<StepPlan()>& plan);

/// The same for the device of each rank, all of which choose the same. Collective.
void choose_bf16_weights(const comm::Communicator& world, Setup& setup);

}  // namespace llamesh::train
