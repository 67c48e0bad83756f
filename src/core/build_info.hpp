#pragma once

namespace llamesh {

/// Version of llamesh, and the commit that it was built from as far as CMake knew it.
const char* version();
const char* commit();

}  // namespace llamesh
