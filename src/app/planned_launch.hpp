#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/commands/commands.hpp"
#include "train/plan.hpp"

namespace llamesh::app {

/// A launch that is planned, and what a rank of it takes.
struct PlannedLaunch {
  train::Setup setup;
  device::Hardware hardware;  ///< of a rank
  train::StepPlan step;

  /// Into limit(), and what is offloaded into the host's memory.
  bool fits() const;
  /// memory.device_limit, or the hardware's.
  double limit() const;
  /// Beside their fp32 masters.
  bool keeps_bf16_weights() const {
    const auto& in = setup.inputs;
    return in.precision.parameters == DType::bf16 &&
           in.sharding.offload == sharding::Offload::none &&
           in.sharding.keep_bf16_weights == sharding::KeepBf16Weights::yes;
  }
};

/// Plans launches of the ranks and the hardware that are asked for.
class LaunchPlanner {
 public:
  explicit LaunchPlanner(const PlanArguments& asked);
  /// Throws a user error where the inputs do not fit one another or the ranks.
  train::Setup setup(const train::Inputs& inputs) const;
  /// Of the rank that takes most. Throws as setup().
  PlannedLaunch plan(const train::Inputs& inputs) const;
  const device::Hardware& hardware() const { return hardware_; }

 private:
  const PlanArguments& asked_;
  device::Hardware hardware_;
};

/// Model, ranks and mesh, in two lines.
std::string describe(const train::Setup& setup, const device::Hardware& hardware);

/// `llamesh plan --dry-run`: all ranks of the launch, and what holds on them together.
int plan_dry_run(const PlanArguments& asked);

/// `llamesh plan --sweep`: a table of what fits, by tokens/s.
int plan_sweep(const PlanArguments& asked);

}  // namespace llamesh::app
