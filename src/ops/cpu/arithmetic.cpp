#include "ops/arithmetic.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>

#include "core/text.hpp"
#include "device/device.hpp"
#include "ops/ops.hpp"

namespace llamesh::ops {
namespace {

/// Returns "GenuineIntel 6/143": vendor, family and model, which name a kind of processor.
std::string processor() {
  std::map<std::string, std::string> values;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const auto colon = line.find(':');
    if (colon == line.npos || colon + 2 > line.size()) continue;
    values[line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1)] = line.substr(colon + 2);
  }
  return fmt::format("{} {}/{}", values["vendor_id"], values["cpu family"], values["model"]);
}

}  // namespace

std::string arithmetic() {
  if (device::kind() == device::Kind::cuda) return gpu_arithmetic();
  const auto* onednn = dnnl_version();
  return fmt::format("g++ {}, oneDNN {}.{}.{} with {}, {} with {} KiB of L2", __VERSION__,
                     onednn->major, onednn->minor, onednn->patch, instruction_set(),
                     printable(processor()), sysconf(_SC_LEVEL2_CACHE_SIZE) / 1024);
}

}  // namespace llamesh::ops
