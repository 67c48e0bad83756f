#include "app/bench/bench.hpp"

#include <cstdio>
#include <string>

#include "app/program/options.hpp"

namespace llamesh::app {

void declare_bench(CLI::App& parser, Run& chosen) {
  auto& bench = add_command(parser, "bench", "Measure this machine and llamesh on it",
                            {"llamesh bench gemm", "mpirun -n 4 llamesh bench collectives"});
  bench.require_subcommand(1);
  // Flush rows as they are measured, in case the benchmark is interrupted.
  bench.preparse_callback([](std::size_t) { std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ); });
  for (auto* declare :
       {declare_bench_gemm, declare_bench_ops, declare_bench_decode, declare_bench_collectives,
        declare_bench_checkpoint, declare_bench_step, declare_bench_hardware})
    declare(bench, chosen);
}

void declare_on_device(CLI::App& bench, Run& chosen, const char* name, const char* help,
                       int (*run)(const std::string& device)) {
  const auto plain = std::string("llamesh bench ") + name;
  auto& command = add_command(bench, name, help, {plain, plain + " --device cpu"});
  auto& [device] = runs(command, chosen, run);
  device = "auto";
  add_device(command, device);
}

}  // namespace llamesh::app
