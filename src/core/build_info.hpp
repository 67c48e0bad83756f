#pragma once

namespace llamesh {

/// llamesh version, and the commit it was built from, as far as CMake knew it.
const char* version();
const char* commit();

}  // namespace llamesh
