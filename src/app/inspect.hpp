#pragma once

#include <string>

namespace llamesh::app {

/// Prints what a run folder, a folder of checkpoints, a checkpoint, a Hugging Face folder or a
/// .safetensors file is, in a table. No MPI needed.
int inspect(const std::string& path);

}  // namespace llamesh::app
