#include <fmt/format.h>

#include "app/commands/planned_launch.hpp"
#include "app/program/output_file.hpp"
#include "config/inputs.hpp"
#include "plan/dry_run.hpp"

namespace llamesh::app {
namespace {

void print_as_json(const PlanArguments& asked, const train::Setup& setup,
                   const plan::DryRun& seen) {
  Json groups = Json::array();
  for (const auto& of : seen.groups)
    groups.push_back({{"axis", of.axis},
                      {"size", of.size},
                      {"groups", of.count},
                      {"collectives", of.collectives}});
  print_json({{"inputs", asked.inputs},
              {"ranks", asked.ranks},
              {"mesh", comm::to_string(setup.mesh)},
              {"simulated_ranks", seen.simulated},
              {"groups", groups},
              {"tensors", setup.table->parameters.size()},
              {"elements", setup.table->numel()},
              {"checkpoint_elements", seen.checkpoint.elements},
              {"hyperslabs", seen.checkpoint.hyperslabs}});
}

void print_as_table(const train::Setup& setup, const device::Hardware& hardware,
                    const plan::DryRun& seen) {
  fmt::print("{}\n", describe(setup, hardware));
  fmt::print("{} of {} ranks simulated; every other rank does the same as one of them\n",
             seen.simulated, setup.mesh.ranks());
  fmt::print("  {:<24}{:>8}{:>8}{:>24}\n", "axis", "ranks", "groups", "collectives per step");
  for (const auto& of : seen.groups)
    fmt::print("  {:<24}{:>8}{:>8}{:>24}\n", of.axis, of.size, of.count, of.collectives);
  fmt::print(
      "the members of each group call the same collectives in the same order (kind, dtype, size, "
      "unit); no groups wait for each other\n");
  fmt::print("{} elements of {} parameters: each is owned once in every replica\n",
             setup.table->numel(), setup.table->parameters.size());
  fmt::print("{} elements of a checkpoint in {} hyperslabs: each is written once\n",
             seen.checkpoint.elements, seen.checkpoint.hyperslabs);
}

}  // namespace

int plan_dry_run(const PlanArguments& asked) {
  const LaunchPlanner planner(asked);
  const auto planned = planner.plan(config::load_inputs(asked.inputs, asked.overrides));
  const auto& setup = planned.setup;
  const auto seen = plan::dry_run(setup, planner.hardware(), plan::rank_classes(setup));
  if (asked.output == Output::json)
    print_as_json(asked, setup, seen);
  else
    print_as_table(setup, planner.hardware(), seen);
  return 0;
}

}  // namespace llamesh::app
