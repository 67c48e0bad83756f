#pragma once

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

/// For libraries that are preloaded into a program (LD_PRELOAD) and stand before the C library.
namespace llamesh::test {

/// The function that the program would call without us.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// The name under which the file is open; empty where it is none.
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
