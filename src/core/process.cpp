#include "core/process.hpp"

#include <unistd.h>

#include <array>
#include <cstdio>

namespace llamesh {

Process& this_process() {
  static Process process = [] {
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) name[0] = '?';
    return Process{0, 1, name.data()};
  }();
  return process;
}

std::string output_of(const std::string& command) {
  // popen() creates the process without copying this one's memory.
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    std::array<char, 256> part{};
    while (fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
    pclose(pipe);
  }
  return text;
}

}  // namespace llamesh
