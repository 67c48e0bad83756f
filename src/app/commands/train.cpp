#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "app/commands/commands.hpp"
#include "app/program/options.hpp"
#include "app/program/program.hpp"
#include "app/report/report.hpp"
#include "app/supervise/launch_watch.hpp"
#include "comm/mesh/topology.hpp"
#include "comm/mpi/launch.hpp"
#include "comm/mpi/session.hpp"
#include "config/inputs.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "plan/step_plan.hpp"
#include "sharding/compile_spec.hpp"
#include "train/job/watch.hpp"
#include "train/preflight/preflight.hpp"
#include "train/run/run.hpp"

namespace llamesh::app {

namespace {

namespace fs = std::filesystem;

struct TrainArguments {
  std::string inputs;                  ///< YAML file
  std::vector<std::string> overrides;  ///< key.path=value
  bool print_config = false;
  bool print_mesh = false;
  bool print_units = false;
  bool print_spec = false;
  bool print_all = false;       ///< for units and spec: do not fold equal layers
  int ranks = 0;                ///< planned launch, for the prints; 0: this launch
  int ranks_per_node = 0;       ///< for the planned launch; 0: one machine
  std::string device = "auto";  ///< auto, cpu, cuda
  bool check = false;  ///< check the nodes (train/preflight/preflight.hpp) instead of training
};

bool prints(const TrainArguments& asked) {
  return asked.print_config || asked.print_mesh || asked.print_units || asked.print_spec;
}

/// Prints the inputs or parts of the setup, as requested by the --print options.
void print_requested(const TrainArguments& asked, const std::string& text,
                     const train::Setup& setup) {
  if (asked.print_config) fmt::print("{}", text);
  if (asked.print_mesh) fmt::print("{}", comm::describe(setup.mesh, setup.topology));
  const auto layers = asked.print_all ? sharding::Layers::each : sharding::Layers::folded;
  if (asked.print_units) fmt::print("{}", sharding::describe_units(*setup.layout, layers));
  const auto& options = setup.inputs.sharding;
  const auto strategy = sharding::name_of(options.strategy);
  if (asked.print_spec)
    fmt::print("{}", sharding::describe_spec(
                         *setup.layout,
                         options.spec ? fmt::format("of the inputs, meshed as {}", strategy)
                                      : fmt::format("{} (built in)", strategy),
                         setup.inputs.tensor.residual, layers));
}

comm::Launch detected_launch() {
  return comm::detect_launch([](const char* name) { return std::getenv(name); });
}

/// Refuses --ranks under a launcher: one process prints for all ranks, and each would print the
/// same.
void refuse_launch(int ranks) {
  const auto launch = detected_launch();
  if (launch.ranks <= 1 || launch.is_shell_in_allocation()) return;
  refuse(launch, fmt::format("--ranks {} plans a launch, but {} ranks were launched ({}); start "
                             "one process without mpirun or srun, or leave --ranks out",
                             ranks, launch.ranks, launch.variable));
}

/// Prints for a planned launch (--ranks). Reads neither data nor weights.
int print_planned(const TrainArguments& asked) {
  refuse_launch(asked.ranks);
  validate(prints(asked),
           "--ranks plans a launch: it needs --print-mesh, --print-units, --print-spec "
           "or --print-config; to train, start the ranks with mpirun -n {}",
           asked.ranks);
  validate(!asked.check, "--check tests nodes, and --ranks plans a launch; use one of them");
  const auto inputs = config::load_inputs(asked.inputs, asked.overrides);
  const int per_machine = asked.ranks_per_node == 0 ? asked.ranks : asked.ranks_per_node;
  print_requested(asked, config::to_yaml(inputs),
                  train::plan_setup(inputs, comm::planned_topology(asked.ranks, per_machine,
                                                                   inputs.mesh.ranks_per_node)));
  return 0;
}

/// Returns a run's last line: its result, and the user's next step.
std::string closing_line(const train::RunEnd& end, const train::Inputs& in,
                         const fs::path& report) {
  const bool done = end.code == ExitCode::done;
  const char* next = !done ? "run the same command to continue"
                     : in.data.format == data::Format::jsonl
                         ? "llamesh chat {0}, or llamesh generate {0} --prompt TEXT"
                     : data::is_text(in.data.format) ? "llamesh generate {} --prompt TEXT"
                                                     : "llamesh inspect {}";
  return fmt::format(
      "{}: step {} of {}{}, {} of wall-clock time{}; next: {}", done ? "done" : "stopped", end.step,
      in.train.steps,
      end.loss ? fmt::format(", {}loss {:.4f}", done ? "final " : "", *end.loss) : "",
      duration_text(end.seconds), report.empty() ? "" : "; report: " + report.string(),
      fmt::format(fmt::runtime(next), shell_word(in.run.folder)));
}

/// Trains and writes the report, also for a run that diverged.
ExitCode train_and_report(const comm::Communicator& world, const train::Setup& setup,
                          const std::string& config, train::Startup startup,
                          comm::Watchdog& watchdog) {
  const auto report = [&] {
    return world.rank() == 0 && setup.inputs.log.report
               ? write_report_quietly(setup.inputs.run.folder)
               : fs::path();
  };
  try {
    const auto end =
        train::run(world, setup, config, std::move(startup), watchdog, config::changes);
    if (!end.nothing_to_do) spdlog::info("{}", closing_line(end, setup.inputs, report()));
    return end.code;
  } catch (const comm::PeerFailure&) {
    throw;
  } catch (const Error&) {
    report();
    throw;
  }
}

/// Notifies the supervisor if this host cannot serve the run.
void announcing_unfit_host(const std::function<void()>& work) try {
  work();
} catch (const UnfitHost& error) {
  announce_unfit_host(error.what());
  throw;
}

int train(const TrainArguments& arguments) {
  if (arguments.ranks > 0) return print_planned(arguments);
  train::Startup startup;
  if (detected_launch().rank == 0) announce_start();
  using comm::WithoutLauncher;
  const comm::MpiSession session(prints(arguments) ? WithoutLauncher::one_rank
                                                   : WithoutLauncher::refuse);
  startup.end_phase("MPI_Init");
  setup_logging();
  const auto& world = session.world();
  comm::Watchdog watchdog = train::watch_over(world);
  use_device(world, arguments.device);
  const auto [inputs, text] = read_inputs(world, arguments.inputs, arguments.overrides);
  const train::Setup setup = plan::make_planned_setup(world, inputs);
  startup.end_phase("inputs and data");

  if (prints(arguments)) {
    if (world.rank() == 0) {
      print_requested(arguments, text, setup);
      announce_end();
    }
    return 0;
  }
  if (world.rank() == 0)
    if (const auto whole = sharding::describe_whole(*setup.layout); !whole.empty())
      spdlog::warn("{}", whole);
  announcing_unfit_host([&] { plan::check_memory(world, setup); });

  auto outcome = ExitCode::done;
  run_or_abort([&, &yaml = text] {
    announcing_unfit_host([&] {
      outcome = arguments.check
                    ? train::preflight(world, setup, version_text())
                    : train_and_report(world, setup, yaml, std::move(startup), watchdog);
    });
    // Rank 0 may write the report for a while: until it is here, the others send their heartbeats.
    watchdog.begin(comm::Activity::ending, 0);
    world.barrier("the end of the run");
  });
  if (world.rank() == 0) announce_end();
  return static_cast<int>(outcome);
}

}  // namespace

void declare_train(CLI::App& parser, Run& chosen) {
  auto& command =
      add_command(parser, "train", "Train a model (under mpirun or srun)",
                  {"mpirun -n 4 llamesh train inputs/tiny.yaml train.steps=20",
                   "llamesh train inputs/tiny.yaml --print-mesh --ranks 16 --ranks-per-node 8"});
  auto& [to] = runs(command, chosen, train);
  command.add_option("INPUTS", to.inputs, "YAML file")->required();
  command.add_option("OVERRIDES", to.overrides, "key.path=value ...");
  add_device(command, to.device);
  command.add_flag("--print-config", to.print_config, "Print all inputs, and stop");
  command.add_flag("--print-mesh", to.print_mesh, "Print which rank is where, and stop");
  command.add_flag("--print-units", to.print_units,
                   "Print which weights are gathered together, and stop");
  command.add_flag("--print-spec", to.print_spec,
                   "Print how each weight is divided among the ranks, and stop");
  command.add_flag(
      "--all", to.print_all,
      "With --print-units and --print-spec: list every layer, even if layers are equal");
  auto* ranks = command
                    .add_option("--ranks", to.ranks,
                                "Print for this many ranks, without a launch, data or weights")
                    ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--ranks-per-node", to.ranks_per_node,
                  "Ranks per node (default: all on one node)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(ranks);
  command.add_flag("--check", to.check,
                   "Check the inputs and every node, and stop; exit 75 if a node is bad");
}

}  // namespace llamesh::app
