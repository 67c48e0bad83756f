#pragma once

#include <string_view>

namespace llamesh::config {

/// inputs/hardware/NAME.yaml embedded at build time; CMake generates hardware_files.cpp.
struct HardwareFile {
  std::string_view name;
  const char* text;
};
extern const HardwareFile hardware_files[5];

}  // namespace llamesh::config
