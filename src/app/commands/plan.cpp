#include <fmt/format.h>

#include "app/commands/commands.hpp"
#include "app/json_output.hpp"
#include "app/planned_launch.hpp"
#include "config/inputs.hpp"

namespace llamesh::app {
namespace {

Json by_use(const device::MemoryByUse& bytes) {
  Json object = Json::object();
  for (std::size_t use = 0; use < bytes.size(); ++use)
    if (bytes[use] != 0) object[name_of(static_cast<device::MemoryUse>(use))] = bytes[use];
  return object;
}

void print_as_json(const PlanArguments& asked, const PlannedLaunch& planned) {
  const auto& step = planned.step;
  print_json(
      {{"inputs", asked.inputs},
       {"ranks", asked.ranks},
       {"mesh", comm::to_string(planned.setup.mesh)},
       {"hardware", planned.hardware.name},
       {"device_bytes", planned.limit()},
       {"fits", planned.fits()},
       {"fullest_rank", step.rank},
       {"valley_bytes", step.valley},
       {"peak_bytes", step.peak},
       {"host_bytes", step.on_host},
       {"host_link_bytes", step.over_host_link},
       {"alive_at_peak", by_use(step.at_peak)},
       {"keep_bf16_weights", planned.keeps_bf16_weights()},
       {"traffic", step.traffic},
       {"traffic_between_nodes", step.traffic_between_nodes},
       {"checkpoint_bytes", step.checkpoint_bytes},
       {"checkpoint_seconds", static_cast<double>(step.checkpoint_bytes) / asked.storage_rate},
       {"step_seconds", step.seconds},
       {"tokens_per_second", step.tokens_per_second},
       {"mfu", step.mfu},
       {"exposed_seconds", step.exposed_seconds}});
}

bool offloads(const train::Inputs& in) {
  return in.sharding.offload != sharding::Offload::none || in.memory.activation_offload;
}

void print_memory(const PlannedLaunch& planned) {
  const auto& step = planned.step;
  fmt::print("memory of rank {}, which takes most, GiB\n", step.rank);
  fmt::print("  {:<24}{:>10.2f}\n", "valley (after a step)", gibibytes(step.valley));
  fmt::print("  {:<24}{:>10.2f}  of {:.2f}: {}\n", "peak", gibibytes(step.peak),
             gibibytes(planned.limit()), planned.fits() ? "fits" : "does not fit");
  for (std::size_t use = 0; use < step.at_peak.size(); ++use)
    if (step.at_peak[use] != 0)
      fmt::print("    {:<22}{:>10.2f}\n", name_of(static_cast<device::MemoryUse>(use)),
                 gibibytes(step.at_peak[use]));
  if (planned.keeps_bf16_weights())
    fmt::print(
        "  the weights are there twice: fp32 masters, and bf16 (sharding.keep_bf16_weights)\n");
  if (offloads(planned.setup.inputs))
    fmt::print("  {:<24}{:>10.2f}  of {:.2f}\n", "host", gibibytes(step.on_host),
               gibibytes(planned.hardware.host_memory_bytes));
}

void print_as_table(const PlanArguments& asked, const PlannedLaunch& planned) {
  fmt::print("{}\n", describe(planned.setup, planned.hardware));
  print_memory(planned);
  const auto& step = planned.step;
  fmt::print("\nsent by a rank in a step, GiB\n  {:<24}{:>10}{:>16}\n", "axis", "",
             "between nodes");
  for (const auto& [axis, bytes] : step.traffic)
    fmt::print("  {:<24}{:>10.2f}{:>16.2f}\n", axis, gibibytes(bytes),
               gibibytes(step.traffic_between_nodes.at(axis)));
  if (offloads(planned.setup.inputs))
    fmt::print("  {:<24}{:>10.2f}\n", "host link, both ways", gibibytes(step.over_host_link));
  fmt::print("\nstep {:.3f} s, of which {:.3f} s wait for communication\n", step.seconds,
             step.exposed_seconds);
  fmt::print("{:.0f} tokens/s, {:.0f} a rank, MFU {:.1f} %\n", step.tokens_per_second,
             step.tokens_per_second / asked.ranks, 100 * step.mfu);
  fmt::print("checkpoint {:.1f} GB, {:.1f} s at {:.0f} GB/s\n",
             static_cast<double>(step.checkpoint_bytes) / 1e9,
             static_cast<double>(step.checkpoint_bytes) / asked.storage_rate,
             asked.storage_rate / 1e9);
}

}  // namespace

int plan(const PlanArguments& arguments) {
  if (arguments.sweep) return plan_sweep(arguments);
  if (arguments.dry_run) return plan_dry_run(arguments);
  const LaunchPlanner planner(arguments);
  const auto planned = planner.plan(config::load_inputs(arguments.inputs, arguments.overrides));
  if (arguments.output == Output::json)
    print_as_json(arguments, planned);
  else
    print_as_table(arguments, planned);
  return planned.fits() ? 0 : 1;
}

}  // namespace llamesh::app
