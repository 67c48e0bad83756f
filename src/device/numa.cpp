#include "device/host_memory.hpp"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <cstdio>
#include <fstream>

namespace llamesh::device {
namespace {

constexpr int bits_per_word = sizeof(unsigned long) * CHAR_BIT;
using NodeMask = std::array<unsigned long, 1024 / bits_per_word>;  // the kernel's largest

/// Returns true if the kernel's list, such as "0-7,16-23", has `processor`.
bool lists(const std::filesystem::path& file, int processor) {
  std::ifstream list(file);
  for (int first = 0; list >> first; list.ignore()) {
    int last = first;
    if (list.peek() == '-') list.ignore() >> last;
    if (first <= processor && processor <= last) return true;
  }
  return false;
}

}  // namespace

int numa_node_of(std::string bus_id, const std::string& devices) {
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(devices + "/" + bus_id + "/numa_node");
  int node = -1;  // also the file's own "not known"
  return file >> node ? node : -1;
}

std::vector<int> own_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  return processors;
}

int node_of_processors(const std::vector<int>& processors, const std::filesystem::path& nodes) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(nodes, ignored)) {
    int node = -1;
    const auto name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "node%d", &node) != 1) continue;
    const auto has = [&](int processor) { return lists(entry.path() / "cpulist", processor); };
    if (std::ranges::none_of(processors, has)) continue;
    return std::ranges::all_of(processors, has) ? node : -1;
  }
  return -1;
}

std::vector<int> gpus_of_ranks(const std::vector<int>& nodes_of_ranks,
                               const std::vector<int>& nodes_of_gpus) {
  const auto gpus = nodes_of_gpus.size();
  std::vector<int> gpu_of(nodes_of_ranks.size(), -1);
  if (gpu_of.size() > gpus) {
    for (std::size_t rank = 0; rank < gpu_of.size(); ++rank)
      gpu_of[rank] = static_cast<int>(rank % gpus);
    return gpu_of;
  }
  std::vector<bool> taken(gpus, false);
  const auto take = [&](std::size_t rank, const auto& is_wanted) {
    for (std::size_t gpu = 0; gpu < gpus && gpu_of[rank] < 0; ++gpu)
      if (!taken[gpu] && is_wanted(nodes_of_gpus[gpu])) {
        gpu_of[rank] = static_cast<int>(gpu);
        taken[gpu] = true;
      }
  };
  for (std::size_t rank = 0; rank < gpu_of.size(); ++rank)
    if (nodes_of_ranks[rank] >= 0)
      take(rank, [&](int node) { return node == nodes_of_ranks[rank]; });
  for (std::size_t rank = 0; rank < gpu_of.size(); ++rank) take(rank, [](int) { return true; });
  return gpu_of;
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
