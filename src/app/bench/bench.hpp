#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/output_file.hpp"

namespace llamesh::app {

/// `llamesh bench gemm`: the GEMMs of the 100M Llama against the peak of the cores, or those of
/// Llama 3 8B on a GPU. `device` is auto, cpu or cuda. Returns the exit code.
int bench_gemm(const std::string& device);
/// `llamesh bench ops`: the other kernels against the memory's rate and the FMA peak, of the same
/// models. Returns the exit code.
int bench_ops(const std::string& device);
/// `llamesh bench collectives`: bus bandwidth on each mesh axis against plain MPI and memcpy.
/// Returns the exit code.
int bench_collectives();
/// `llamesh bench checkpoint [--mib N]`: saves and loads a state of about N MiB against raw writes
/// and reads of the same bytes (under mpirun), in a folder below the one in which it starts.
/// Returns the exit code.
int bench_checkpoint(std::int64_t mebibytes);
/// `llamesh bench decode`: generation token by token against the rate at which the weights can be
/// read. Takes 5 GB of memory. `device` is auto, cpu or cuda. Returns the exit code.
int bench_decode(const std::string& device);
/// `llamesh bench step [INPUTS.yaml] [key.path=value ...]`: training steps against the minimum time
/// of their matmul FLOPs. `device` is auto, cpu or cuda. Unless `tune_gemms` is empty, it then
/// finds the fastest algorithm for each GEMM, measures again, and writes them to that file (as
/// OutputFile takes it). Returns the exit code.
int bench_step(const std::vector<std::string>& arguments, const std::string& device,
               const std::string& tune_gemms, Existing existing);

}  // namespace llamesh::app
