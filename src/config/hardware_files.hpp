#pragma once

#include <string_view>

namespace llamesh::config {

/// inputs/hardware/NAME.yaml as it was when this program was built; hardware_files.cpp is made by
/// CMake.
struct HardwareFile {
  std::string_view name;
  const char* text;
};
extern const HardwareFile hardware_files[5];

}  // namespace llamesh::config
