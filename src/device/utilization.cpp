#include "device/utilization.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "core/clock.hpp"
#include "device/device.hpp"

namespace llamesh::device {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns the CPU seconds of all threads of this process.
double cpu_seconds() {
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

UtilizationMeter::UtilizationMeter(int threads)
    : threads_(std::max(1, threads)), read_(Clock::now()), cpu_seconds_(cpu_seconds()) {}

std::optional<double> UtilizationMeter::share() {
  if (kind() == Kind::cuda) return gpu_utilization(identity());
  const auto available = threads_ * seconds_since(std::exchange(read_, Clock::now()));
  const auto now = cpu_seconds();
  const auto used = now - std::exchange(cpu_seconds_, now);
  return available > 0 ? std::min(1.0, used / available) : 0;
}

}  // namespace llamesh::device
