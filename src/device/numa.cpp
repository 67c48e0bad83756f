#include "device/host_memory.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <fstream>

namespace llamesh::device {
namespace {

constexpr int bits_per_word = sizeof(unsigned long) * CHAR_BIT;
using NodeMask = std::array<unsigned long, 1024 / bits_per_word>;  // the kernel's largest

}  // namespace

int numa_node_of(std::string bus_id, const std::string& devices) {
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(devices + "/" + bus_id + "/numa_node");
  int node = -1;  // also the file's own "not known"
  return file >> node ? node : -1;
}

PreferNumaNode::PreferNumaNode(int node) {
  int policy = MPOL_DEFAULT;
  if (node < 0 || node >= static_cast<int>(NodeMask{}.size()) * bits_per_word ||
      syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0 || policy != MPOL_DEFAULT)
    return;
  NodeMask mask{};
  mask[static_cast<std::size_t>(node / bits_per_word)] = 1UL << (node % bits_per_word);
  changed_ =
      syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), mask.size() * bits_per_word) == 0;
}

PreferNumaNode::~PreferNumaNode() {
  if (changed_) syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
}

}  // namespace llamesh::device
