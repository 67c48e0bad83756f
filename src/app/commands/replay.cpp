#include "train/run/replay.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "app/commands/commands.hpp"
#include "app/program/options.hpp"
#include "app/program/program.hpp"
#include "comm/mpi/session.hpp"
#include "config/inputs.hpp"
#include "core/log.hpp"
#include "plan/step_plan.hpp"
#include "train/job/watch.hpp"
#include "train/records/run_metrics.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

struct ReplayArguments {
  std::string run;                     ///< run folder
  std::vector<std::string> overrides;  ///< key.path=value
  std::int64_t step = 0;
  std::int64_t until = 0;  ///< 0: `step`
  int ranks_per_node = 0;  ///< 0: a machine's
  std::string device = "auto";
};

/// Refuses to override options of mesh and memory on which the run's bits depend.
void check_overrides(const config::Inputs& of_run, const config::Inputs& asked) {
  if (of_run.train.reproducible != train::Reproducible::mesh) return;
  const auto check = [](const char* key, const auto& was, const auto& is) {
    validate(is == was, "{} was {}, on which the bits depend; leave it out", key, was);
  };
  check("train.reproducible_tensor", of_run.train.reproducible_tensor,
        asked.train.reproducible_tensor);
  check("train.reproducible_context", of_run.train.reproducible_context,
        asked.train.reproducible_context);
  check("tensor.residual", name_in_inputs(of_run.tensor.residual),
        name_in_inputs(asked.tensor.residual));
  const auto chunk = [](const config::Inputs& in) {
    return in.memory.loss_chunk == 0 ? "auto" : fmt::format("{}", in.memory.loss_chunk);
  };
  check("memory.loss_chunk", chunk(of_run), chunk(asked));
}

/// Returns the run's inputs without what a replay leaves out: it saves, evaluates and reports
/// nothing. Mesh options on which the bits do not depend are left to the strategy. There are
/// as many tensor and context ranks as fit; they stand for the run's.
config::Inputs inputs_of(const std::string& text, const ReplayArguments& asked, int ranks) {
  auto in = config::parse_inputs(text, "the run's inputs");
  if (in.train.reproducible == train::Reproducible::mesh) {
    const auto take_fitting = [&](int& of_run, int& in_mesh, int left) {
      if (of_run == 0) of_run = in_mesh;
      in_mesh = std::gcd(of_run, left);
      return left / in_mesh;
    };
    const int left = take_fitting(in.train.reproducible_context, in.mesh.context, ranks);
    take_fitting(in.train.reproducible_tensor, in.mesh.tensor, left);
    in.mesh.replicate = in.mesh.shard = 0;
    in.mesh.pipeline = 1;
    in.mesh.ranks_per_node = 0;
    in.pipeline = {};
    in.sharding.strategy = sharding::Strategy::full_shard;
    in.sharding.reshard_after_forward = sharding::ReshardAfterForward::by_strategy;
  }
  const auto of_run = in;
  in = config::parse_inputs(config::to_yaml(in), "the run's inputs", asked.overrides);
  check_overrides(of_run, in);
  if (asked.ranks_per_node > 0) in.mesh.ranks_per_node = asked.ranks_per_node;
  in.run.folder = asked.run;
  in.checkpoint.every_steps = 0;
  in.checkpoint.memory = {};
  in.evaluate.every_steps = 0;
  in.log.openmetrics.clear();
  in.profile.steps.clear();
  return in;
}

/// Refuses a mesh on which the run's bits are not promised.
void check_mesh(const train::Setup& setup, const std::string& of_run) {
  const auto here = comm::to_string(setup.mesh);
  validate(setup.is_mesh_reproducible() || of_run.empty() || of_run == here,
           "the steps were trained on mesh {}, and this launch has {}; with train.reproducible "
           "launch only the same mesh has the same bits: start as many ranks, and give mesh.axes",
           of_run, here);
}

std::string describe(const train::ReplayEnd& end) {
  if (!end.difference.empty()) return end.difference;
  return fmt::format(
      "equal: steps {} to {} in loss and gradient norm{}", end.first, end.last,
      end.hashed == 0 ? "" : fmt::format(", {} of them in the hashes of the state", end.hashed));
}

int replay(const ReplayArguments& asked) {
  const auto last = asked.until == 0 ? asked.step : asked.until;
  const comm::MpiSession session(comm::WithoutLauncher::one_rank);
  setup_logging();
  const auto& world = session.world();
  auto watchdog = train::watch_over(world);
  use_device(world, asked.device);
  train::RunMetrics recorded;
  train::ReplayPlan plan;
  const auto config = comm::on_rank_0(world, [&] {
    validate(last >= asked.step, "--until {} is before --step {}", last, asked.step);
    recorded = train::read_metrics(fs::path(asked.run) / "metrics.jsonl");
    plan = train::plan_replay(asked.run, recorded, asked.step, last);
    return config::to_yaml(inputs_of(plan.config, asked, world.size()));
  });
  const fs::path checkpoint = world.broadcast(plan.checkpoint.string());
  const auto setup =
      plan::make_planned_setup(world, config::parse_inputs(config, "resolved inputs"));
  comm::agree(world, [&] {
    if (world.rank() == 0) check_mesh(setup, plan.mesh);
  });
  train::ReplayEnd end;
  run_or_abort([&] {
    end = train::replay(world, setup, checkpoint, recorded, last, watchdog);
    world.barrier("the end of the replay");
  });
  if (world.rank() == 0) fmt::print("{}\n", describe(end));
  return end.difference.empty() ? 0 : 1;
}

}  // namespace

void declare_replay(CLI::App& parser, Run& chosen) {
  auto& command = add_command(parser, "replay",
                              "Train steps of a run again and compare the bits (also under mpirun)",
                              {"llamesh replay runs/first --step 1507",
                               "mpirun -n 4 llamesh replay runs/first --step 1507 --until 1510 "
                               "mesh.axes.pipeline=2"});
  auto& [to] = runs(command, chosen, replay);
  command.add_option("RUN", to.run, "Run folder")->required();
  command.add_option("OVERRIDES", to.overrides, "key.path=value ... of the run's inputs");
  command.add_option("--step", to.step, "First step of interest")
      ->required()
      ->check(CLI::PositiveNumber);
  command.add_option("--until", to.until, "Last step (default: --step)")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--ranks-per-node", to.ranks_per_node,
                  "Split each machine into nodes with so many ranks")
      ->check(CLI::Range(1, 1 << 20));
  add_device(command, to.device);
}

}  // namespace llamesh::app
