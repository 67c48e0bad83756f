#pragma once

#include <string_view>

#include "comm/mpi/launch.hpp"

namespace llamesh::comm {

/// Throws a user error for what would make MPI_Init end this process with a page of MPI's own text:
/// a umask that locks its user out, too few open files, files that may not be as large as the
/// memory that processes share, or for Open MPI without a launcher a folder for temporary files
/// that cannot be made. `library` is MPI's version text.
void check_process_limits(const Launch& launch, const Environment& environment,
                          std::string_view library);

}  // namespace llamesh::comm
