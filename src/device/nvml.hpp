#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace llamesh::device {

/// Returns the millijoules that a GPU, named by its PCI bus id, has used since its driver was
/// loaded (nvmlDeviceGetTotalEnergyConsumption). Nothing if NVML cannot be opened, or the GPU has
/// no such counter (before Volta, and slices of MIG). NVML is opened at run time: it comes with the
/// driver.
std::optional<std::uint64_t> gpu_energy(const std::string& bus_id);

}  // namespace llamesh::device
