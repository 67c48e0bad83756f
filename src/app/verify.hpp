#pragma once

#include <string>

namespace llamesh::app {

/// Reads every byte of a checkpoint and compares it with its checksums. Returns 0 only if all is
/// good, else prints what is not and returns 74. No MPI needed.
int verify(const std::string& path);

}  // namespace llamesh::app
