#pragma once

#include <string>

#include "app/program/command.hpp"

namespace llamesh::app {

/// Adds `llamesh bench` with all benchmarks.
Declare declare_bench;

/// Benchmarks, in the order of the help.
Declare declare_bench_gemm, declare_bench_ops, declare_bench_decode, declare_bench_collectives,
    declare_bench_checkpoint, declare_bench_step, declare_bench_hardware;

/// Adds a benchmark of one process, on the device from --device: auto, cpu or cuda.
void declare_on_device(CLI::App& bench, Run& chosen, const char* name, const char* help,
                       int (*run)(const std::string& device));

}  // namespace llamesh::app
