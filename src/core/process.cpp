#include "core/process.hpp"

#include <unistd.h>

#include <array>

namespace llamesh {

Process& this_process() {
  static Process process = [] {
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) name[0] = '?';
    return Process{0, 1, name.data()};
  }();
  return process;
}

}  // namespace llamesh
