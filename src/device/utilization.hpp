#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace llamesh::device {

/// Measures how busy this process keeps its device: with a GPU, NVML's share of the latest time in
/// which a kernel ran; on CPUs, this process's CPU seconds over those of its compute threads.
class UtilizationMeter {
 public:
  /// Takes the first reading.
  explicit UtilizationMeter(int threads);

  /// Returns the share since the last reading, 0 to 1; empty if a GPU's driver does not tell.
  std::optional<double> share();

 private:
  int threads_;
  std::chrono::steady_clock::time_point read_;
  double cpu_seconds_;
};

/// Returns the share for a GPU, named by its PCI bus id (nvmlDeviceGetUtilizationRates), over up to
/// a second. Nothing if NVML does not tell (slices of MIG).
std::optional<double> gpu_utilization(const std::string& bus_id);

}  // namespace llamesh::device
