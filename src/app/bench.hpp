#pragma once

#include <string>
#include <vector>

namespace llamesh::app {

/// `llamesh bench gemm`: the GEMMs of the 100M Llama beside the peak of the cores. Returns the exit
/// code.
int bench_gemm();
/// `llamesh bench ops`: the other kernels beside the memory's rate and the FMA peak. Returns the
/// exit code.
int bench_ops();
/// `llamesh bench collectives`: bus bandwidth on each mesh axis beside plain MPI and memcpy.
/// Returns the exit code.
int bench_collectives();
/// `llamesh bench step [INPUTS.yaml] [key.path=value ...]`: training steps beside the floor that
/// their matmul FLOPs need. Returns the exit code.
int bench_step(const std::vector<std::string>& arguments);

}  // namespace llamesh::app
