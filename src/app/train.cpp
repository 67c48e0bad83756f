#include <fmt/format.h>

#include "app/commands.hpp"
#include "app/session.hpp"
#include "comm/session.hpp"
#include "config/changes.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "sharding/wrap_policy.hpp"
#include "train/preflight.hpp"
#include "train/run.hpp"

namespace llamesh::app {

int train(const TrainArguments& arguments) {
  train::Startup startup;
  const comm::MpiSession session;
  startup.end_phase("MPI_Init");
  setup_logging();
  const auto& world = session.world();
  use_device(world, arguments.device);
  const auto [inputs, text] = read_inputs(world, arguments.inputs, arguments.overrides);
  const train::Setup setup = train::make_setup(world, inputs);
  startup.end_phase("inputs and data");

  const auto print = [&](bool wanted, const auto& make_text) {
    if (wanted && world.rank() == 0) fmt::print("{}", make_text());
    return wanted;
  };
  // Bitwise, so that every text that was asked for is printed.
  if (print(arguments.print_config, [&] { return text; }) |
      print(arguments.print_mesh, [&] { return comm::describe(setup.mesh, setup.topology); }) |
      print(arguments.print_units, [&] { return sharding::describe_units(*setup.layout); }))
    return 0;

  auto outcome = ExitCode::done;
  run_or_abort([&, &yaml = text] {
    outcome = arguments.check ? train::preflight(world, setup, version_text())
                              : train::run(world, setup, yaml, std::move(startup), config::changes);
  });
  return static_cast<int>(outcome);
}

}  // namespace llamesh::app
