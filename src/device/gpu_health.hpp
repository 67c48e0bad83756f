#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace llamesh::device {

/// State of a GPU, as NVML reports it. What a GPU or a driver does not report is empty.
struct GpuHealth {
  /// ECC errors that were not corrected, since the driver was loaded.
  std::optional<std::uint64_t> uncorrected_errors;
  /// The hardware, its temperature or its power supply holds the clocks down now.
  bool clocks_held_down = false;
  std::optional<int> nvlinks;  ///< active NVLinks

  bool operator==(const GpuHealth&) const = default;
};

/// Asks NVML about a GPU, named by its PCI bus id. Nothing if NVML cannot be opened. Call it while
/// the GPU is busy, or just after: clocks of an idle GPU say nothing.
std::optional<GpuHealth> gpu_health(const std::string& bus_id);

}  // namespace llamesh::device
