#pragma once

#include <chrono>

namespace llamesh {

inline double to_seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return to_seconds(std::chrono::steady_clock::now() - start);
}

/// Returns the seconds since 1970.
inline double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace llamesh
