#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace llamesh::device {

/// State of a GPU, as NVML reports it. Values that the GPU or driver does not report are empty.
struct GpuHealth {
  /// ECC errors that were not corrected, since the driver was loaded.
  std::optional<std::uint64_t> uncorrected_errors;
  /// Clocks are throttled now, for hardware, thermal or power supply reasons.
  bool clocks_held_down = false;
  std::optional<int> nvlinks;  ///< active NVLinks

  bool operator==(const GpuHealth&) const = default;
};

/// Asks NVML about a GPU, named by its PCI bus id. Returns nothing if NVML cannot be opened. Call
/// it while the GPU is busy, or just after: an idle GPU's clocks say nothing.
std::optional<GpuHealth> gpu_health(const std::string& bus_id);

}  // namespace llamesh::device
