#pragma once

#include <string>
#include <vector>

#include "device/hardware.hpp"

namespace llamesh::config {

/// What --hardware names: one of those built in (inputs/hardware/NAME.yaml), else a file with the
/// same keys. Throws a user error of one line where a rate is missing or zero.
device::Hardware load_hardware(const std::string& name);

/// The names of those built in.
std::vector<std::string> built_in_hardware();

}  // namespace llamesh::config
