#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace llamesh::device {

/// Counter of joules that only grows, except that it may wrap.
struct EnergyCounter {
  std::filesystem::path path = {};  ///< its file; empty: it has none
  double joules_per_unit = 1;
  double range = 0;  ///< units after which it starts again at 0; 0: it does not
  /// Power in watts above which a reading is implausible.
  double max_watts = std::numeric_limits<double>::infinity();
  double before = 0;                                ///< units at the last reading
  std::chrono::steady_clock::time_point read = {};  ///< time of the last reading
};

/// Energy that this process's share of the machine has used: on the process that answers for its
/// node, the node's counters, and on each process with a GPU, the GPU's.
///
/// - HPE Cray EX: /sys/cray/pm_counters/energy, the whole node with its GPUs (HPE's "User Access to
///   Compute Node Power Data"). If it is there, nothing else is read.
/// - RAPL by powercap: the package domains (intel-rapl:N with the name package-*), which AMD's
///   processors have too. Not their parts (core, uncore, dram) nor psys, which would count twice
///   (Linux, Documentation/power/powercap).
/// - NVML's total energy counter of this process's GPU.
///
/// Counters that are missing or unreadable are left out and never estimated. Since Linux 5.10 only
/// root may read RAPL, unless the site permits more.
class EnergyMeter {
 public:
  /// Callback that reads the millijoules of this process's GPU; empty without a GPU.
  using GpuReading = std::function<std::optional<std::uint64_t>()>;

  /// Takes the first reading. `answers_for_node`: this process reads the node's counters. `sysfs`
  /// and `gpu` are replaced in tests.
  explicit EnergyMeter(bool answers_for_node, const std::filesystem::path& sysfs = "/sys",
                       GpuReading gpu = reading_of_gpu());

  /// Returns the joules since the last reading, or the first one. Returns nothing if a counter that
  /// this process should read does not exist, cannot be read, was reset since, or grew faster than
  /// any package draws power. A reset or a jump costs one step; after an unreadable counter the
  /// next step has the joules of both. 0 if other processes read all counters.
  std::optional<double> joules();

  /// Names what this process reads: "RAPL (2 packages)", "NVML (each GPU)"; empty: nothing.
  std::string describe() const;

 private:
  /// Returns the reading of this process's GPU by NVML.
  static GpuReading reading_of_gpu();

  bool reads_node_;      ///< node counters are this process's to read
  GpuReading read_gpu_;  ///< empty: no GPU, or a node counter includes it
  bool whole_node_;      ///< Cray's counter
  std::vector<EnergyCounter> counters_;
  std::optional<EnergyCounter> gpu_;  ///< in millijoules; empty: it has none
};

/// Returns the millijoules that a GPU, named by its PCI bus id, has used since its driver was
/// loaded (nvmlDeviceGetTotalEnergyConsumption). Nothing if NVML cannot be opened, or the GPU has
/// no such counter (before Volta, and slices of MIG). NVML is opened at run time: it comes with the
/// driver.
std::optional<std::uint64_t> gpu_energy(const std::string& bus_id);

}  // namespace llamesh::device
