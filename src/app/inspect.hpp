#pragma once

#include <string>

namespace llamesh::app {

/// Prints what a run folder, a folder of checkpoints or a checkpoint is, in a table. No MPI needed.
int inspect(const std::string& path);

}  // namespace llamesh::app
