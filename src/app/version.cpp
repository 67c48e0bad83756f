#include <fmt/format.h>

#include "app/commands.hpp"
#include "comm/session.hpp"
#include "ops/ops.hpp"
#include "version.hpp"

namespace llamesh::app {

std::string version_text() {
  return fmt::format(
      "llamesh {} ({})\ncompiler: {} {}, -march={}\nMPI: {}\nHDF5: {}\nCPU kernels: {}\nCUDA: not "
      "built in",
      LLAMESH_VERSION, LLAMESH_COMMIT, LLAMESH_COMPILER, __VERSION__, LLAMESH_ARCH,
      comm::mpi_version(), LLAMESH_HDF5_VERSION, ops::instruction_set());
}

}  // namespace llamesh::app
