#include <fmt/format.h>

#include "app/commands.hpp"
#include "comm/session.hpp"
#include "core/version.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {

std::string version_text() {
  return fmt::format(
      "llamesh {} ({})\ncompiler: {}\nMPI: {}\nHDF5: {}\nCPU kernels: {}\nCUDA: not built "
      "in",
      version(), commit(), __VERSION__, comm::mpi_version(), LLAMESH_HDF5_VERSION,
      ops::instruction_set());
}

}  // namespace llamesh::app
