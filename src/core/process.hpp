#pragma once

#include <string>

namespace llamesh {

/// This process's rank, world size and host. Set once by comm::MpiSession; rank 0 of 1 before.
struct Process {
  int rank = 0;
  int world_size = 1;
  std::string host;
};

/// This process; messages and logs take rank and host from it.
Process& this_process();

/// Runs a shell command and returns its standard output; empty if it cannot be run.
std::string output_of(const std::string& command);

}  // namespace llamesh
