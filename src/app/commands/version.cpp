#include <fmt/format.h>

#include "app/commands/commands.hpp"
#include "app/program/options.hpp"
#include "comm/mpi/session.hpp"
#include "comm/transports/nccl.hpp"
#include "core/process.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {
namespace {

std::string cuda_text() {
  const auto nccl = comm::nccl_version();
  if (nccl.empty()) return "not built in";
  const int devices = device::cuda_devices();
  if (devices == 0) return fmt::format("built in, NCCL {}, {}", nccl, device::why_no_cuda());
  return fmt::format("built in, NCCL {}, attention by {}, {} device{}", nccl, ops::gpu_attention(),
                     devices, devices == 1 ? "" : "s");
}

}  // namespace

std::string version_text() {
  return fmt::format("llamesh {} ({})\ncompiler: {}\nMPI: {}\nHDF5: {}\nCPU kernels: {}\nCUDA: {}",
                     version(), commit(), __VERSION__, comm::mpi_version(), LLAMESH_HDF5_VERSION,
                     ops::instruction_set(), cuda_text());
}

void declare_version(CLI::App& parser, Run& chosen) {
  auto& command = add_command(parser, "version", "Print what llamesh was built with, and stop",
                              {"llamesh version", "srun -n 1 llamesh version"});
  runs(command, chosen, [] {
    fmt::print("{}\n", version_text());
    return 0;
  });
}

}  // namespace llamesh::app
