#pragma once

#include <string>

#include "app/commands.hpp"

namespace llamesh::app {

/// Reads every byte of a checkpoint (of a run: its newest one) and compares it with its checksums,
/// or every tensor of a Hugging Face folder or .safetensors file, whose numbers have to be finite.
/// Returns 0 only if all is good, else prints what is not and returns 74. No MPI needed.
int verify(const std::string& name, Output output);

}  // namespace llamesh::app
