#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/program/output_file.hpp"

namespace llamesh::app {

/// Runs `llamesh bench gemm`: the 100M Llama's GEMMs against the cores' peak, or Llama 3 8B's on a
/// GPU. `device` is auto, cpu or cuda. Returns the exit code.
int bench_gemm(const std::string& device);
/// Runs `llamesh bench ops`: the same models' other kernels against memory bandwidth and FMA peak.
/// Returns the exit code.
int bench_ops(const std::string& device);
/// Runs `llamesh bench collectives`: bus bandwidth on each mesh axis against plain MPI and memcpy.
/// Returns the exit code.
int bench_collectives();
/// Runs `llamesh bench checkpoint [--mib N]`: saves and loads a state of about N MiB against raw
/// writes and reads of the same bytes (under mpirun), below the working folder. Returns the exit
/// code.
int bench_checkpoint(std::int64_t mebibytes);
/// Runs `llamesh bench decode`: token-by-token generation against the rate at which weights can be
/// read. Takes 5 GB of memory. `device` is auto, cpu or cuda. Returns the exit code.
int bench_decode(const std::string& device);
/// Runs `llamesh bench hardware --output FILE` (under mpirun): measures this machine's rates for
/// `llamesh plan --hardware FILE` in about `seconds`. Returns the exit code.
int bench_hardware(const std::string& output, Existing existing, double seconds);
/// Runs `llamesh bench step [INPUTS.yaml] [key.path=value ...]`: training steps against the minimum
/// time for their matmul FLOPs. `device` is auto, cpu or cuda. Unless `tune_gemms` is empty, it
/// then finds the fastest algorithm for each GEMM, measures again, and writes the algorithms to
/// that file (an OutputFile name). Returns the exit code.
int bench_step(const std::vector<std::string>& arguments, const std::string& device,
               const std::string& tune_gemms, Existing existing);

}  // namespace llamesh::app
