#include "app/bench_checkpoint_timings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

namespace llamesh::app {
namespace {

/// A number of /proc/self/status, in bytes.
std::int64_t status_of(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) {
      std::int64_t kibibytes = 0;
      std::istringstream(line.substr(key.size() + 1)) >> kibibytes;
      return kibibytes * 1024;
    }
  return 0;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

void print_line(const Timings& timings, const Timings& raw, double bytes) {
  std::vector<double> percent;
  for (std::size_t i = 0; i < timings.seconds.size(); ++i)
    percent.push_back(100 * raw.seconds[i] / timings.seconds[i]);
  const double best = std::ranges::min(timings.seconds);
  fmt::print("{:<36} {:>9.3f} {:>9.2f} {:>9.2f} {:>8.0f} % {:>8.0f} % {:>7.0f} to {:.0f} %\n",
             timings.name, median(timings.seconds), bytes / median(timings.seconds) * 1e-9,
             bytes / best * 1e-9, 100 * std::ranges::min(raw.seconds) / best, median(percent),
             std::ranges::min(percent), std::ranges::max(percent));
}

double seconds_of(const comm::Communicator& world, const std::function<void()>& work) {
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  comm::agree(world, work);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(world.max(static_cast<std::int64_t>(seconds.count() * 1e9))) * 1e-9;
}

double rise_in_mib(const comm::Communicator& world, const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark starts from here
  const auto before = status_of("VmRSS");
  work();
  return static_cast<double>(world.max(status_of("VmHWM") - before)) / (1 << 20);
}

}  // namespace llamesh::app
