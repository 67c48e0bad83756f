#include "app/planned_launch.hpp"

#include "comm/topology.hpp"
#include "config/hardware.hpp"
#include "sharding/compile_spec.hpp"

namespace llamesh::app {

bool PlannedLaunch::fits() const {
  const auto peak = static_cast<double>(step.peak);
  const auto on_host = static_cast<double>(step.on_host);
  const double of_device = hardware.kind == device::Kind::cpu ? peak : 0;  // the same memory
  return peak <= limit() && of_device + on_host <= hardware.host_memory_bytes;
}

double PlannedLaunch::limit() const {
  const auto asked = setup.inputs.memory.device_limit;
  return asked > 0 ? static_cast<double>(asked) : hardware.memory_bytes;
}

LaunchPlanner::LaunchPlanner(const PlanArguments& asked)
    : asked_(asked),
      hardware_(
          train::share_of_rank(config::load_hardware(asked.hardware),
                               asked.ranks_per_node == 0 ? asked.ranks : asked.ranks_per_node)) {}

PlannedLaunch LaunchPlanner::plan(const train::Inputs& inputs) const {
  const int per_machine = asked_.ranks_per_node == 0 ? asked_.ranks : asked_.ranks_per_node;
  PlannedLaunch planned;
  planned.hardware = hardware_;
  planned.setup = train::plan_setup(
      inputs, comm::planned_topology(asked_.ranks, per_machine, inputs.mesh.ranks_per_node));
  const auto& in = planned.setup.inputs;
  if (in.sharding.spec) sharding::check_implemented(*planned.setup.layout, in.tensor.residual);
  planned.step = train::plan_step(planned.setup, hardware_);
  return planned;
}

}  // namespace llamesh::app
