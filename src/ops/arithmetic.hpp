#pragma once

#include <string>

namespace llamesh::ops {

/// Names what the bits of CPU results depend on beside the inputs, in one line: compiler, oneDNN,
/// its instruction set, and the processor with the cache that oneDNN divides products by. Empty in a
/// process that computes on a GPU.
std::string arithmetic();

}  // namespace llamesh::ops
