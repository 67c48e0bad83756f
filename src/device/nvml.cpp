#include <dlfcn.h>

#include "device/energy.hpp"
#include "device/gpu_health.hpp"
#include "device/utilization.hpp"

namespace llamesh::device {
namespace {

// Values in nvml.h.
constexpr int uncorrected = 1;      // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr int since_driver = 0;     // NVML_VOLATILE_ECC
constexpr unsigned max_links = 18;  // NVML_NVLINK_MAX_LINKS
constexpr int enabled = 1;          // NVML_FEATURE_ENABLED
/// nvmlClocksThrottleReasonHwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown.
/// Not the power cap, which large GEMMs reach on a healthy GPU, nor limits set on purpose.
constexpr unsigned long long held_down = 0x08 | 0x20 | 0x40 | 0x80;

/// NVML's functions, by the names and types in nvml.h. All return 0 for success. Those after the
/// first two may be null: drivers differ.
struct Nvml {
  using Device = void*;
  struct Utilization {  // nvmlUtilization_t
    unsigned gpu, memory;
  };
  int (*init)() = nullptr;
  int (*device_of)(const char* bus_id, Device* device) = nullptr;
  int (*total_energy)(Device device, unsigned long long* millijoules) = nullptr;
  int (*total_errors)(Device device, int type, int counter, unsigned long long* count) = nullptr;
  int (*clock_reasons)(Device device, unsigned long long* reasons) = nullptr;
  int (*link_state)(Device device, unsigned link, int* active) = nullptr;
  int (*utilization)(Device device, Utilization* percent) = nullptr;
  bool usable = false;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    find(total_energy, "nvmlDeviceGetTotalEnergyConsumption");
    find(total_errors, "nvmlDeviceGetTotalEccErrors");
    find(clock_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(link_state, "nvmlDeviceGetNvLinkState");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    usable = find(init, "nvmlInit_v2") && find(device_of, "nvmlDeviceGetHandleByPciBusId_v2") &&
             init() == 0;
  }

  static const Nvml& instance() {
    static const Nvml nvml;
    return nvml;
  }

  /// Returns null if NVML cannot be used, or does not know the GPU.
  Device find_device(const std::string& bus_id) const {
    Device device = nullptr;
    return usable && device_of(bus_id.c_str(), &device) == 0 ? device : nullptr;
  }
};

std::optional<int> active_links(const Nvml& nvml, Nvml::Device device) {
  if (nvml.link_state == nullptr) return {};
  std::optional<int> active;
  for (unsigned link = 0; link < max_links; ++link)
    if (int state = 0; nvml.link_state(device, link, &state) == 0)
      active = active.value_or(0) + (state == enabled ? 1 : 0);
  return active;
}

}  // namespace

std::optional<std::uint64_t> gpu_energy(const std::string& bus_id) {
  const auto& nvml = Nvml::instance();
  auto* const device = nvml.find_device(bus_id);
  unsigned long long millijoules = 0;
  if (device == nullptr || nvml.total_energy == nullptr ||
      nvml.total_energy(device, &millijoules) != 0)
    return {};
  return millijoules;
}

std::optional<double> gpu_utilization(const std::string& bus_id) {
  const auto& nvml = Nvml::instance();
  auto* const device = nvml.find_device(bus_id);
  Nvml::Utilization percent{};
  if (device == nullptr || nvml.utilization == nullptr || nvml.utilization(device, &percent) != 0)
    return {};
  return percent.gpu / 100.0;
}

std::optional<GpuHealth> gpu_health(const std::string& bus_id) {
  const auto& nvml = Nvml::instance();
  auto* const device = nvml.find_device(bus_id);
  if (device == nullptr) return {};
  GpuHealth gpu;
  unsigned long long number = 0;
  if (nvml.total_errors != nullptr &&
      nvml.total_errors(device, uncorrected, since_driver, &number) == 0)
    gpu.uncorrected_errors = number;
  if (nvml.clock_reasons != nullptr && nvml.clock_reasons(device, &number) == 0)
    gpu.clocks_held_down = (number & held_down) != 0;
  gpu.nvlinks = active_links(nvml, device);
  return gpu;
}

}  // namespace llamesh::device
