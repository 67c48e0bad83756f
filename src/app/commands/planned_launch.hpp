#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "app/commands/commands.hpp"
#include "plan/step_plan.hpp"

namespace llamesh::app {

/// A planned launch, with one rank's needs.
struct PlannedLaunch {
  train::Setup setup;
  device::Hardware hardware;  ///< of one rank
  plan::StepPlan step;

  /// Returns true if the step fits into limit(), and offloaded state and memory checkpoints into
  /// host memory.
  bool fits() const;
  /// Returns memory.device_limit, or what a step may take of the hardware's memory.
  double limit() const;
  /// Returns the number of ranks along the expert axis.
  int expert_ranks() const { return setup.mesh.group_size(setup.mesh.named({"expert"})); }
  /// Returns how many times the mean number of rows a rank of the expert axis can receive: a token
  /// takes k different ones of N experts, and the rank has N / expert_ranks() of them.
  double max_imbalance() const {
    const auto& model = setup.inputs.model;
    if (expert_ranks() == 1) return 1;
    return std::min<double>(expert_ranks(), static_cast<double>(model.num_experts) /
                                                static_cast<double>(model.num_experts_per_tok));
  }
  /// Returns true if ranks keep bf16 weights beside their fp32 masters.
  bool keeps_bf16_weights() const {
    const auto& in = setup.inputs;
    return in.precision.parameters == DType::bf16 &&
           in.sharding.offload == sharding::Offload::none &&
           in.sharding.keep_bf16_weights == sharding::KeepBf16Weights::yes;
  }
};

/// Plans launches with the requested ranks and hardware.
class LaunchPlanner {
 public:
  explicit LaunchPlanner(const PlanArguments& asked);
  /// Plans the setup. Throws a user error if the inputs do not fit one another or the ranks.
  train::Setup setup(const train::Inputs& inputs) const;
  /// Plans the step on the rank with the highest peak memory, as the busiest one of its expert axis
  /// (PlanArguments::imbalance, at most the axis's size). Throws like setup().
  PlannedLaunch plan(const train::Inputs& inputs) const;
  const device::Hardware& hardware() const { return hardware_; }

 private:
  const PlanArguments& asked_;
  device::Hardware hardware_;
};

/// Describes model, ranks and mesh in two lines.
std::string describe(const train::Setup& setup, const device::Hardware& hardware);

/// Runs `llamesh plan --dry-run`: simulates all ranks in the launch and checks them together.
int plan_dry_run(const PlanArguments& asked);

/// Runs `llamesh plan --sweep`: prints a table of launches that fit, by tokens/s.
int plan_sweep(const PlanArguments& asked);

}  // namespace llamesh::app
