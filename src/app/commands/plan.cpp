#include <fmt/format.h>

#include "app/commands/commands.hpp"
#include "app/commands/planned_launch.hpp"
#include "app/program/options.hpp"
#include "config/inputs.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh::app {
namespace {

Json by_use(const device::MemoryByUse& bytes) {
  Json object = Json::object();
  for (std::size_t use = 0; use < bytes.size(); ++use)
    if (bytes[use] != 0) object[name_of(static_cast<device::MemoryUse>(use))] = bytes[use];
  return object;
}

/// Returns the bytes/s at which a checkpoint is written.
double storage_rate(const PlanArguments& asked, const PlannedLaunch& planned) {
  if (asked.storage_rate > 0) return asked.storage_rate;
  const double measured = planned.hardware.measured.disk;
  return measured > 0 ? measured : 10e9;
}

/// Returns an exchange between replicas that train apart; null without any.
Json exchange_json(const PlannedLaunch& planned) {
  const auto& exchange = planned.step.exchange;
  if (!exchange) return nullptr;
  return {{"every_steps", planned.setup.inputs.optimizer.outer.every_steps},
          {"traffic", exchange->traffic},
          {"traffic_between_nodes", exchange->traffic_between_nodes},
          {"seconds", exchange->seconds},
          {"exposed_seconds", exchange->exposed_seconds}};
}

void print_as_json(const PlanArguments& asked, const PlannedLaunch& planned) {
  const auto& step = planned.step;
  print_json({{"inputs", asked.inputs},
              {"ranks", asked.ranks},
              {"mesh", comm::to_string(planned.setup.mesh)},
              {"parameters", planned.setup.table->numel()},
              {"active_parameters", planned.setup.table->active_numel()},
              {"trained_parameters", planned.setup.table->trained_numel()},
              {"imbalance", asked.imbalance},
              {"hardware", planned.hardware.name},
              {"attained", asked.attained},
              {"device_bytes", planned.limit()},
              {"fits", planned.fits()},
              {"fullest_rank", step.rank},
              {"valley_bytes", step.allocated_after_step},
              {"peak_bytes", step.peak},
              {"host_bytes", step.on_host},
              {"host_link_bytes", step.over_host_link},
              {"memory_checkpoint_bytes", step.memory_checkpoints},
              {"alive_at_peak", by_use(step.at_peak)},
              {"keep_bf16_weights", planned.keeps_bf16_weights()},
              {"traffic", step.traffic},
              {"traffic_between_nodes", step.traffic_between_nodes},
              {"exchange", exchange_json(planned)},
              {"checkpoint_bytes", step.checkpoint_bytes},
              {"checkpoint_seconds",
               static_cast<double>(step.checkpoint_bytes) / storage_rate(asked, planned)},
              {"step_seconds", step.seconds},
              {"tokens_per_second", step.tokens_per_second},
              {"mfu", step.mfu},
              {"exposed_seconds", step.exposed_seconds}});
}

std::string time_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

bool offloads(const train::Inputs& in) {
  return in.sharding.offload != sharding::Offload::none || in.memory.activation_offload;
}

void print_memory(const PlannedLaunch& planned) {
  const auto& step = planned.step;
  fmt::print("memory of rank {}, the fullest\n", step.rank);
  fmt::print("  {:<24}{:>12}\n", "after a step", bytes_text(step.allocated_after_step));
  fmt::print("  {:<24}{:>12}  of {}: {}\n", "peak", bytes_text(step.peak),
             bytes_text(planned.limit()), planned.fits() ? "fits" : "does not fit");
  for (std::size_t use = 0; use < step.at_peak.size(); ++use)
    if (step.at_peak[use] != 0)
      fmt::print("    {:<22}{:>12}\n", name_of(static_cast<device::MemoryUse>(use)),
                 bytes_text(step.at_peak[use]));
  if (planned.keeps_bf16_weights())
    fmt::print(
        "  the trained weights are kept twice: fp32 masters, and bf16 "
        "(sharding.keep_bf16_weights)\n");
  if (offloads(planned.setup.inputs))
    fmt::print("  {:<24}{:>12}  of {}\n", "host", bytes_text(step.on_host),
               bytes_text(planned.hardware.host_memory_bytes));
  if (step.memory_checkpoints == 0) return;
  const auto allowed = planned.setup.inputs.checkpoint.memory.limit;
  fmt::print("  {:<24}{:>12}  in its node's /dev/shm{}, {} of it for replicas from other nodes\n",
             "memory checkpoints", bytes_text(step.memory_checkpoints),
             allowed == 0 ? "" : fmt::format(", of {} allowed", bytes_text(allowed)),
             bytes_text(step.remote_replicas));
}

/// Prints what replicas that train apart exchange.
void print_exchange(const PlannedLaunch& planned) {
  const auto& exchange = *planned.step.exchange;
  fmt::print("\nexchanged by replicas every {} steps, in {}, of which steps wait for {}\n",
             planned.setup.inputs.optimizer.outer.every_steps, time_text(exchange.seconds),
             time_text(exchange.exposed_seconds));
  for (const auto& [axis, bytes] : exchange.traffic)
    if (bytes > 0)
      fmt::print("  {:<24}{:>12}{:>16}\n", axis, bytes_text(bytes),
                 bytes_text(exchange.traffic_between_nodes.at(axis)));
}

void print_as_table(const PlanArguments& asked, const PlannedLaunch& planned) {
  fmt::print("{}\n", describe(planned.setup, planned.hardware));
  print_memory(planned);
  const auto& step = planned.step;
  fmt::print("\nsent per rank and step\n  {:<24}{:>12}{:>16}\n", "axis", "", "between nodes");
  for (const auto& [axis, bytes] : step.traffic)
    fmt::print("  {:<24}{:>12}{:>16}\n", axis, bytes_text(bytes),
               bytes_text(step.traffic_between_nodes.at(axis)));
  if (offloads(planned.setup.inputs))
    fmt::print("  {:<24}{:>12}\n", "host link, both ways", bytes_text(step.over_host_link));
  if (step.exchange) print_exchange(planned);
  if (asked.imbalance > 1)
    fmt::print("\nthe rank receives {:g} times the mean rows of its expert axis (--imbalance)\n",
               asked.imbalance);
  fmt::print("\nstep {}, of which {} wait for communication\n", time_text(step.seconds),
             time_text(step.exposed_seconds));
  fmt::print("{:.0f} tokens/s, {:.0f} per rank, MFU {:.1f} %\n", step.tokens_per_second,
             step.tokens_per_second / asked.ranks, 100 * step.mfu);
  const double storage = storage_rate(asked, planned);
  fmt::print("checkpoint {}, {} at {:g} GB/s\n", bytes_text(step.checkpoint_bytes),
             time_text(static_cast<double>(step.checkpoint_bytes) / storage), storage / 1e9);
}

/// Throws a user error if no rank could receive so many rows.
void check_imbalance(const PlanArguments& asked, const PlannedLaunch& planned) {
  const int ranks = planned.expert_ranks();
  validate(asked.imbalance == 1 || ranks > 1,
           "--imbalance is {:g}, but the mesh {} has no expert axis; set mesh.axes.expert",
           asked.imbalance, comm::to_string(planned.setup.mesh));
  const auto& model = planned.setup.inputs.model;
  validate(
      asked.imbalance <= planned.max_imbalance(),
      "--imbalance is {:g}, but one of {} ranks receives at most {:g} times the mean rows if a "
      "token takes {} of {} experts; lower --imbalance",
      asked.imbalance, ranks, planned.max_imbalance(), model.num_experts_per_tok,
      model.num_experts);
}

}  // namespace

int plan(const PlanArguments& arguments) {
  if (arguments.sweep) return plan_sweep(arguments);
  if (arguments.dry_run) return plan_dry_run(arguments);
  const LaunchPlanner planner(arguments);
  const auto planned = planner.plan(config::load_inputs(arguments.inputs, arguments.overrides));
  check_imbalance(arguments, planned);
  if (arguments.output == Output::json)
    print_as_json(arguments, planned);
  else
    print_as_table(arguments, planned);
  return planned.fits() ? 0 : 1;
}

void declare_plan(CLI::App& parser, Run& chosen) {
  auto& command = add_command(
      parser, "plan", "Predict memory, traffic and time of a step; exit 1 if it does not fit",
      {"llamesh plan inputs/clusters/llama3-8b-1x8.yaml --ranks 8 --hardware h200",
       "llamesh plan inputs/tiny.yaml mesh.axes.shard=2 --ranks 4 --json"});
  auto& [to] = runs(command, chosen, plan);
  command.add_option("INPUTS", to.inputs, "YAML file, as for train")->required();
  command.add_option("OVERRIDES", to.overrides, "key.path=value ...");
  command.add_option("--ranks", to.ranks, "Ranks of the launch")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--ranks-per-node", to.ranks_per_node,
                  "Ranks per node (default: all on one node)")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--hardware", to.hardware,
                     "h100 (the default), h200, a100-80, a100-40, cpu-node, or a file like those "
                     "in inputs/hardware or from bench hardware");
  command.add_flag("--attained", to.attained,
                   "Plan at the rates that published runs reach, not at those of single kernels");
  command.add_option_function<double>(
      "--storage",
      [&rate = to.storage_rate](double gigabytes) {
        if (!(gigabytes >= 1e-6 && gigabytes <= 1e6))  // nan, too
          throw CLI::ValidationError(
              "--storage",
              fmt::format("{} is out of range; allowed: 1e-06 to 1e+06 GB/s", gigabytes));
        rate = 1e9 * gigabytes;
      },
      "Write bandwidth for checkpoints in GB/s (default: measured, else 10)");
  auto* imbalance = command.add_option_function<double>(
      "--imbalance",
      [&imbalance = to.imbalance](double times) {
        if (!(times >= 1 && times <= 65536))  // nan, too
          throw CLI::ValidationError("--imbalance",
                                     fmt::format("{} is out of range; allowed: 1 or more", times));
        imbalance = times;
      },
      "Plan the busiest rank of an expert axis, which receives this many times the mean "
      "rows (default 1: uniform routing)");
  auto* sweep =
      command.add_flag("--sweep", to.sweep,
                       "List the meshes, strategies, checkpointing modes and micro-batches that "
                       "fit, by tokens/s; what OVERRIDES set is kept");
  command
      .add_flag("--dry-run", to.dry_run,
                "Check all ranks: the members of each group call the same collectives in the same "
                "order, and each element is owned and written once; exit 70 if not")
      ->excludes(sweep)
      ->excludes(imbalance);
  add_json(command, to.output);
}

}  // namespace llamesh::app
