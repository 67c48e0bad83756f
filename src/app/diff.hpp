#pragma once

#include <string>

namespace llamesh::app {

/// Compares two checkpoints tensor by tensor: the largest absolute and relative difference. Returns
/// 0 when all are equal bit for bit, else 1. No MPI needed.
int diff(const std::string& a, const std::string& b);

}  // namespace llamesh::app
