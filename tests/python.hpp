#pragma once

#include "core/process.hpp"

namespace llamesh::test {

/// Returns true if python3 has jinja2, which chat templates that are not built in need (Debian:
/// python3-jinja2).
inline bool has_jinja() {
  return output_of({"python3", "-c", "import jinja2; print('yes')"}) == "yes\n";
}

}  // namespace llamesh::test
