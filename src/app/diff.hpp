#pragma once

#include <string>

#include "app/commands.hpp"

namespace llamesh::app {

/// Compares two checkpoints, Hugging Face folders or .safetensors files tensor by tensor: the
/// largest absolute and relative difference. Of a run its newest good checkpoint is taken; of a
/// checkpoint beside a folder or file only the model counts. Returns 0 when all are equal bit for
/// bit as fp32, else 1. No MPI needed.
int diff(const std::string& a, const std::string& b, Output output);

}  // namespace llamesh::app
