#pragma once

#include <string>

namespace llamesh::ops {

/// Returns one line that names whatever CPU results depend on to the bit beside the inputs:
/// compiler, oneDNN, its instruction set, and the processor with the cache by which oneDNN divides
/// products. Empty in a process that computes on a GPU.
std::string arithmetic();

}  // namespace llamesh::ops
