#include "app/commands/planned_launch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/mesh/topology.hpp"
#include "config/hardware.hpp"
#include "core/text.hpp"
#include "plan/step_plan.hpp"
#include "sharding/compile_spec.hpp"

namespace llamesh::app {

bool PlannedLaunch::fits() const {
  const auto peak = static_cast<double>(step.peak);
  const auto on_host = static_cast<double>(step.on_host);
  const double of_device = hardware.kind == device::Kind::cpu ? peak : 0;  // the same memory
  const auto& hosts = setup.topology.host_of;
  const auto ranks = std::ranges::count(hosts, hosts[static_cast<std::size_t>(step.rank)]);
  const auto snapshots = static_cast<double>(step.memory_checkpoints) / static_cast<double>(ranks);
  const auto allowed = setup.inputs.checkpoint.memory.limit;
  return peak <= limit() && of_device + on_host + snapshots <= hardware.host_memory_bytes &&
         (allowed == 0 || step.memory_checkpoints <= allowed);
}

double PlannedLaunch::limit() const {
  const auto asked = setup.inputs.memory.device_limit;
  if (asked > 0) return static_cast<double>(asked);
  if (hardware.kind == device::Kind::cpu) return hardware.memory_bytes;
  return static_cast<double>(plan::usable_gpu_memory(
      static_cast<std::int64_t>(hardware.memory_bytes) - plan::context_bytes, setup.mesh.ranks()));
}

namespace {

/// Returns how many ranks share a machine.
int ranks_per_machine(const PlanArguments& asked) {
  return asked.ranks_per_node == 0 ? asked.ranks : std::min(asked.ranks, asked.ranks_per_node);
}

/// Loads a rank's hardware. Throws a user error if the file cannot be used for this plan.
device::Hardware hardware_of_rank(const PlanArguments& asked) {
  const int ranks = ranks_per_machine(asked);
  auto hardware = config::load_hardware(asked.hardware);
  validate(!hardware.is_measured() || hardware.measured.ranks == ranks,
           "{} was measured with {} per node, but the plan has {}; measure with that many",
           asked.hardware, counted(hardware.measured.ranks, "rank"), ranks);
  if (asked.attained) {
    validate(hardware.attained > 0,
             "--attained: {} has no key `attained`; add it, or leave --attained out",
             asked.hardware);
    validate(!hardware.is_measured(), "--attained: {} has measured rates; leave --attained out",
             asked.hardware);
    hardware = plan::as_attained(std::move(hardware));
  }
  return plan::share_of_rank(std::move(hardware), ranks);
}

}  // namespace

LaunchPlanner::LaunchPlanner(const PlanArguments& asked)
    : asked_(asked), hardware_(hardware_of_rank(asked)) {}

train::Setup LaunchPlanner::setup(const train::Inputs& inputs) const {
  const int per_machine = ranks_per_machine(asked_);
  const int threads = inputs.train.threads;
  validate(!hardware_.is_measured() || threads == 0 || threads == hardware_.threads,
           "{} was measured with {} per rank, but train.threads is {}; measure with that many",
           asked_.hardware, counted(hardware_.threads, "thread"), threads);
  auto setup = train::plan_setup(
      inputs, comm::planned_topology(asked_.ranks, per_machine, inputs.mesh.ranks_per_node));
  validate(setup.inputs.precision.linear != model::LinearPrecision::fp8 ||
               hardware_.kind == device::Kind::cpu || hardware_.peak_fp8 > 0,
           "precision.linear is fp8, but {} has no peak.fp8: its GPUs have no units for it; use "
           "fp8_emulated or same",
           asked_.hardware);
  validate(!hardware_.is_measured() || setup.topology.nodes == 1 ||
               !hardware_.measured.between_nodes.empty(),
           "{} has no rates between nodes, but the plan has {}; measure with more than one rank",
           asked_.hardware, setup.topology.nodes);
  const auto& in = setup.inputs;
  if (in.sharding.spec) sharding::check_implemented(*setup.layout, in.tensor.residual);
  return setup;
}

PlannedLaunch LaunchPlanner::plan(const train::Inputs& inputs) const {
  PlannedLaunch planned{setup(inputs), hardware_, {}};
  planned.step = plan::plan_bf16_weights(planned.setup, planned.limit(), [&] {
    const double imbalance = std::min(asked_.imbalance, planned.max_imbalance());
    return plan::plan_fullest_rank(planned.setup, hardware_, imbalance);
  });
  return planned;
}

std::string describe(const train::Setup& setup, const device::Hardware& hardware) {
  const auto& in = setup.inputs;
  const auto active = setup.table->active_numel();
  const auto of_which = active == setup.table->numel()
                            ? ""
                            : fmt::format(", of which a token takes {},", parameters_text(active));
  const auto frozen = setup.table->numel() - setup.table->trained_numel();
  return fmt::format(
      "{}: {} parameters{}{} in {}, {} on {}, {}\n"
      "mesh {}, {}, {} micro-batch{} of {} x {} tokens per rank\n",
      in.run.name, parameters_text(setup.table->numel()), of_which,
      frozen == 0 ? "" : fmt::format(" ({} frozen)", parameters_text(frozen)),
      describe(in.precision), counted(setup.mesh.ranks(), "rank"),
      counted(setup.topology.nodes, "node"), hardware.name, comm::to_string(setup.mesh),
      sharding::name_of(in.sharding.strategy), setup.micro_batches,
      setup.micro_batches == 1 ? "" : "es", in.train.micro_batch, in.data.sequence_length);
}

}  // namespace llamesh::app
