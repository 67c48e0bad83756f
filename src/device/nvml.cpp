#include "device/energy.hpp"

#include <dlfcn.h>

namespace llamesh::device {
namespace {

/// NVML's functions, by the names and types in nvml.h. All return 0 for success.
struct Nvml {
  using Device = void*;
  int (*init)() = nullptr;
  int (*device_of)(const char* bus_id, Device* device) = nullptr;
  int (*total_energy)(Device device, unsigned long long* millijoules) = nullptr;
  bool usable = false;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    usable = find(init, "nvmlInit_v2") && find(device_of, "nvmlDeviceGetHandleByPciBusId_v2") &&
             find(total_energy, "nvmlDeviceGetTotalEnergyConsumption") && init() == 0;
  }
};

}  // namespace

std::optional<std::uint64_t> gpu_energy(const std::string& bus_id) {
  static const Nvml nvml;
  Nvml::Device device = nullptr;
  unsigned long long millijoules = 0;
  if (!nvml.usable || nvml.device_of(bus_id.c_str(), &device) != 0 ||
      nvml.total_energy(device, &millijoules) != 0)
    return {};
  return millijoules;
}

}  // namespace llamesh::device
