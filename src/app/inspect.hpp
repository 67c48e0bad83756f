#pragma once

#include <string>

#include "app/commands.hpp"

namespace llamesh::app {

/// Prints what a run folder, a folder of checkpoints, a checkpoint, a Hugging Face folder, a
/// .safetensors or a token file is, in a table. No MPI needed.
int inspect(const std::string& name, Output output);

}  // namespace llamesh::app
