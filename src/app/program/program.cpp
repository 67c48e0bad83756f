#include "app/program/program.hpp"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "comm/mpi/session.hpp"
#include "config/inputs.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "device/device.hpp"
#include "device/host_memory.hpp"
#include "ops/bf16_products.hpp"

namespace llamesh::app {

ReadInputs read_inputs(const comm::Communicator& world, const std::string& path,
                       const std::vector<std::string>& overrides) {
  std::optional<sharding::Spec> spec;
  std::string text = comm::on_rank_0(world, [&] {
    auto inputs = config::load_inputs(path, overrides);
    config::resolve_data(inputs, path, overrides);
    for (const auto& note : inputs.notes) spdlog::info("{}", note);
    spec = inputs.sharding.spec;
    return config::to_yaml(inputs);
  });
  auto inputs = config::parse_inputs(text, "resolved inputs");
  // The same spec, with line numbers in the user's files: rank 0 reports errors in it.
  if (world.rank() == 0) inputs.sharding.spec = std::move(spec);
  return {std::move(inputs), std::move(text)};
}

namespace {

comm::DeviceChoice choice_of(const std::string& text) {
  using enum comm::DeviceChoice;
  expects(text == "auto" || text == "cpu" || text == "cuda", "--device {}", text);
  return text == "cpu" ? cpu : text == "cuda" ? cuda : automatic;
}

}  // namespace

void use_device(const comm::Communicator& world, const std::string& choice) {
  comm::agree(world,
              [] { device::check_address_space(device::library_address_space(/*threads=*/1)); });
  comm::choose_device(world, choice_of(choice));
}

void use_single_device(const std::string& choice) {
  using enum comm::DeviceChoice;
  device::check_address_space(device::library_address_space(/*threads=*/1));
  const auto wanted = choice_of(choice);
  const auto failure = wanted == automatic ? device::cuda_failure() : "";
  validate(failure.empty(), "the NVIDIA driver cannot list its GPUs: {}; give --device cpu",
           failure);
  if (wanted == cuda || (wanted == automatic && device::cuda_devices() > 0)) device::use_cuda(0);
}

void use_faster_bf16_products() {
  if (device::kind() != device::Kind::cpu) return;
  ops::use_bf16_products(ops::measured_bf16_products().faster());
  const auto why = ops::why_no_amx();
  if (!why.empty()) fmt::print(stderr, "{}: it is not used\n", why);
}

void refuse(const comm::Launch& launch, const std::string& what) {
  std::optional<comm::MpiSession> session;
  if (launch.by_open_mpi()) session.emplace();  // mpirun needs MPI_Init to end the job quietly
  if (launch.rank != 0) throw comm::PeerFailure(ExitCode::bad_input);
  fail(ExitCode::bad_input, "{}", what);
}

void await_reporting_rank() {
  // The first rank to end makes srun --kill-on-bad-exit send SIGTERM to the others, which would end
  // with the signal's exit code instead of their own.
  std::signal(SIGTERM, SIG_IGN);
  std::this_thread::sleep_for(std::chrono::seconds(2));
}

void run_or_abort(const std::function<void()>& work) {
  try {
    work();
  } catch (const comm::PeerFailure& error) {
    await_reporting_rank();
    comm::abort_job(error.code());
  } catch (const std::exception& any) {
    const Error error = as_error(any);
    print_error(
        fmt::format("rank {} on {}: {}", this_process().rank, this_process().host, error.what()));
    comm::abort_job(error.code());
  }
}

}  // namespace llamesh::app
