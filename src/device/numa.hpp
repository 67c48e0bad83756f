#pragma once

#include <string>

namespace llamesh::device {

/// Returns the NUMA node next to a PCI device, given as "0000:1B:00.0"; -1 if the system does not
/// tell. `devices` is sysfs' folder of PCI devices.
int numa_node_of(std::string bus_id, const std::string& devices = "/sys/bus/pci/devices");

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
