#pragma once

#include <string>

namespace llamesh {

/// Who this process is among all ranks. Set once, by comm::MpiSession; one process of one before.
struct Process {
  int rank = 0;
  int world_size = 1;
  std::string host;
};

/// The process's own entry; messages and logs name rank and host by it.
Process& this_process();

}  // namespace llamesh
