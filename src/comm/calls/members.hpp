#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llamesh::comm {

/// Ranks in a communicator.
struct Members {
  std::string name;        ///< "world", or a mesh axis, for messages
  std::uint64_t id = 0;    ///< the same on all ranks; unique among communicators
  std::vector<int> ranks;  ///< world rank, by rank in the communicator
};

}  // namespace llamesh::comm
