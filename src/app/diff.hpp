#pragma once

#include <string>

namespace llamesh::app {

/// Compares two checkpoints, Hugging Face folders or .safetensors files tensor by tensor: the
/// largest absolute and relative difference. Of a checkpoint beside one of the others only the
/// model counts. Returns 0 when all are equal bit for bit as fp32, else 1. No MPI needed.
int diff(const std::string& a, const std::string& b);

}  // namespace llamesh::app
