#pragma once

#include <cstdlib>
#include <string>
#include <thread>

namespace llamesh::test {

/// Returns `limit` times LLAMESH_PATIENCE (1) and times the load per processor, plus one. For waits
/// that last this long only if something hangs: no test asserts that something takes less time.
/// tests/patience.sh is the same for shell tests.
template <class Duration>
Duration stretched(Duration limit) {
  const char* patience = std::getenv("LLAMESH_PATIENCE");
  double load = 0;
  if (getloadavg(&load, 1) != 1) load = 0;
  const double processors = std::thread::hardware_concurrency();
  const auto factor = 1 + static_cast<int>(load / processors);
  return limit * factor * (patience == nullptr ? 1 : std::stoi(patience));
}

}  // namespace llamesh::test
