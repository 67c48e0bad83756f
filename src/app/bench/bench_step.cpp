#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "app/bench/bench.hpp"
#include "app/program/options.hpp"
#include "app/program/program.hpp"
#include "comm/mpi/session.hpp"
#include "core/log.hpp"
#include "device/device.hpp"
#include "ops/gemm_algorithms.hpp"
#include "plan/step_plan.hpp"
#include "train/engine/flops.hpp"
#include "train/step/trainer.hpp"

namespace llamesh::app {
namespace {

constexpr const char* benchmark_model = "inputs/llama-100m.yaml";

/// Returns the records of a few steps, sorted by time, without the first step, which creates
/// buffers and kernels, or tunes.
std::vector<train::StepRecord> measure(train::Trainer& trainer, std::int64_t steps) {
  trainer.train_step();
  std::vector<train::StepRecord> records;
  for (std::int64_t i = 1; i < steps; ++i) records.push_back(trainer.train_step());
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  return records;
}

const train::StepRecord& median(const std::vector<train::StepRecord>& records) {
  return records[records.size() / 2];
}

/// Prints the axes that carry traffic.
void print_axes(const train::StepRecord& r) {
  for (const auto& [axis, bytes] : r.traffic) {
    if (bytes == 0) continue;
    fmt::print("axis {}: {:.1f} MiB sent by a rank", axis, static_cast<double>(bytes) / (1 << 20));
    if (r.in_collectives.contains(axis))
      fmt::print(", {:.3f} s in its collectives", r.in_collectives.at(axis));
    if (r.exposed.contains(axis)) fmt::print(", {:.3f} s exposed", r.exposed.at(axis));
    fmt::print("\n");
  }
}

using NamedStep = std::pair<const char*, train::StepRecord>;

void print_table(const train::Setup& setup, double gemm_rate, const std::vector<NamedStep>& rows) {
  const auto& in = setup.inputs;
  const auto tokens = static_cast<double>(in.train.global_batch * in.data.sequence_length);
  const double per_token = train::matmul_flops_per_token(*setup.table);
  const double flops = per_token * tokens;
  const double floor = flops / gemm_rate;
  fmt::print("{} parameters, {} tokens a step, {}, {}, mesh {}\n", setup.table->numel(), tokens,
             describe(in.precision), sharding::name_of(in.sharding.strategy),
             comm::to_string(setup.mesh));
  fmt::print("floor: {:.4g} x {} = {:.3g} FLOP at the measured {:.0f} GFLOP/s: {:.3f} s\n",
             per_token, tokens, flops, gemm_rate / 1e9, floor);
  fmt::print("{:<8} {:>10} {:>12} {:>10} {:>8}\n", "step", "seconds", "tokens/s", "of floor",
             "MFU");
  for (const auto& [name, r] : rows)
    fmt::print("{:<8} {:>10.3f} {:>12.0f} {:>8.0f} % {:>6} %\n", name, r.seconds,
               r.tokens_per_second, 100 * floor / r.seconds,
               r.mfu ? fmt::format("{:.0f}", 100 * *r.mfu) : "-");
  const auto& best = rows.front().second;
  fmt::print("memory of the fullest rank: {:.1f} MiB after a step, peak {:.1f} MiB\n",
             static_cast<double>(best.allocated_after_step) / (1 << 20),
             static_cast<double>(best.peak) / (1 << 20));
  print_axes(best);
}

/// Measures training steps against the minimum time for their matmul FLOPs. Unless `tune_gemms` is
/// empty, it then finds the fastest algorithm for each GEMM, measures again, and writes the
/// algorithms to that file (an OutputFile name).
int bench_step(const std::vector<std::string>& arguments, const std::string& device,
               const std::string& tune_gemms, Existing existing) {
  const comm::MpiSession session;
  setup_logging();
  const auto& world = session.world();
  use_device(world, device);
  const auto path = arguments.empty() ? benchmark_model : arguments.front();
  const std::vector<std::string> overrides(arguments.begin() + (arguments.empty() ? 0 : 1),
                                           arguments.end());
  train::Inputs inputs = read_inputs(world, path, overrides).inputs;
  inputs.evaluate.every_steps = 0;
  const auto steps = inputs.train.steps;
  std::optional<OutputFile> table;
  comm::agree(world, [&] {  // every rank finds the same error, one reports it
    validate(steps >= 2, "bench step needs train.steps of at least 2, not {}", steps);
    if (tune_gemms.empty()) return;
    validate(device::kind() == device::Kind::cuda,
             "--tune-gemms is for GPUs: the CPU's GEMMs have one algorithm each");
    validate(inputs.train.gemm_sm_count_target == 0,
             "--tune-gemms times products on all SMs of a GPU; leave train.gemm_sm_count_target 0, "
             "not {}",
             inputs.train.gemm_sm_count_target);
    if (world.rank() == 0) table.emplace(tune_gemms, existing);
    inputs.train.steps *= 2;          // the second half is tuned
    inputs.train.gemm_table.clear();  // tune again
  });
  const train::Setup setup = plan::make_planned_setup(world, inputs);
  run_or_abort([&] {
    comm::DeviceMesh mesh(world, setup.topology, setup.mesh, setup.order_of_sums());
    train::Trainer trainer(world, setup, mesh);
    trainer.start();
    trainer.measure_gemm_peak();
    const auto records = measure(trainer, steps);
    std::vector<NamedStep> rows{{"best", records.front()}, {"median", median(records)}};
    if (!tune_gemms.empty()) {
      ops::tune_gemms();
      rows.emplace_back("tuned", median(measure(trainer, steps)));
    }
    if (world.rank() != 0) return;
    print_table(setup, trainer.meter().gemm_peak()->rate(), rows);
    if (!table) return;
    fmt::print("{}: {}\n", tune_gemms, ops::write_gemm_table(table->path()));
    table->finish();
  });
  return 0;
}

}  // namespace

void declare_bench_step(CLI::App& bench, Run& chosen) {
  auto& command = add_command(
      bench, "step", "Compare whole training steps with their minimum time (under mpirun)",
      {"llamesh bench step",
       "mpirun -n 4 llamesh bench step inputs/tiny.yaml train.micro_batch=2"});
  auto& [inputs, device, tune_gemms, existing] = runs(command, chosen, bench_step);
  device = "auto";
  command.add_option("INPUTS", inputs,
                     "YAML file (default: inputs/llama-100m.yaml), then key.path=value ...");
  add_device(command, device);
  command.add_option("--tune-gemms", tune_gemms,
                     "On a GPU: find the fastest algorithm for each GEMM of the step and write "
                     "them to this file, for train.gemm_table");
  add_force(command, existing);
}

}  // namespace llamesh::app
