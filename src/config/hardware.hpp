#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "device/hardware.hpp"

namespace llamesh::config {

/// Loads the hardware for --hardware: a built-in one (inputs/hardware/NAME.yaml), else a file with
/// the same keys. Throws a one-line user error if a rate is missing or zero.
device::Hardware load_hardware(const std::string& name);

/// Formats measured hardware of a CPU node as a file for load_hardware().
std::string hardware_text(const device::Hardware& hardware);

/// Returns the built-in names.
std::vector<std::string> built_in_hardware();

/// inputs/hardware/NAME.yaml embedded at build time; CMake generates hardware_files.cpp.
struct HardwareFile {
  std::string_view name;
  const char* text;
};
extern const HardwareFile hardware_files[5];

}  // namespace llamesh::config
