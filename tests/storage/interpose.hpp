#pragma once

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

/// Helpers for libraries that are preloaded (LD_PRELOAD) to intercept calls to the C library.
namespace llamesh::test {

/// Returns the function that the program would call without us.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// Returns the name of an open file; empty if it has none.
inline std::string path_of(int fd) {
  char path[PATH_MAX];
  const auto link = "/proc/self/fd/" + std::to_string(fd);
  const auto length = readlink(link.c_str(), path, sizeof(path));
  return length < 0 ? std::string() : std::string(path, static_cast<std::size_t>(length));
}

inline int rank_of_process() {
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr ? 0 : atoi(rank);
}

}  // namespace llamesh::test
