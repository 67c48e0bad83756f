#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace llamesh::device {

/// Address space that a rank takes beside its buffers: oneDNN's code, stacks and malloc()'s arenas
/// of its threads, Open MPI's queues. A run of inputs/tiny.yaml takes 180 MiB with one thread and
/// 250 MiB with two; malloc() manages without arenas of 64 MiB that find no room.
std::int64_t library_address_space(int threads);

/// Throws a user error if this process may not map `bytes` more (ulimit -v, ulimit -d). oneDNN,
/// Open MPI and OpenMP end the process if they cannot get memory, so this check comes first.
void check_address_space(std::int64_t bytes);

/// Returns the NUMA node next to a PCI device, given as "0000:1B:00.0"; -1 if it is unknown.
/// `devices` is sysfs' folder of PCI devices.
int numa_node_of(std::string bus_id, const std::string& devices = "/sys/bus/pci/devices");

/// Returns the processors on which this thread may run.
std::vector<int> own_processors();

/// Returns the NUMA node that has all these processors; -1 if several have them, or it is unknown.
/// `nodes` is sysfs' folder.
int node_of_processors(const std::vector<int>& processors,
                       const std::filesystem::path& nodes = "/sys/devices/system/node");

/// Returns each rank's GPU if all see the same ones: the first free one on the rank's NUMA node, or
/// else the first free one. More ranks than GPUs share them in turn. Nodes are as returned above.
/// Pure.
std::vector<int> gpus_of_ranks(const std::vector<int>& nodes_of_ranks,
                               const std::vector<int>& nodes_of_gpus);

/// A scope in which pages that this thread has the kernel allocate come from a NUMA node, if it has
/// free ones. Does nothing for node -1, for a thread with a memory policy already (numactl), and
/// where the kernel refuses.
class PreferNumaNode {
 public:
  explicit PreferNumaNode(int node);
  ~PreferNumaNode();
  PreferNumaNode(const PreferNumaNode&) = delete;
  PreferNumaNode& operator=(const PreferNumaNode&) = delete;

 private:
  bool changed_ = false;
};

}  // namespace llamesh::device
