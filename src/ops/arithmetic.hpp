#pragma once

#include <string>

namespace llamesh::ops {

/// Returns one line that names whatever results depend on to the bit beside the inputs. On CPUs:
/// compiler, oneDNN, its instruction set, and the processor with the cache by which oneDNN divides
/// products. On GPUs: their kind and cuBLASLt; used_attention() names the kernels for attention.
std::string arithmetic();
/// Returns its line for this process's GPU; empty in a build without CUDA.
std::string gpu_arithmetic();

}  // namespace llamesh::ops
