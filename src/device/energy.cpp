#include "device/energy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <regex>
#include <system_error>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "device/device.hpp"

namespace llamesh::device {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Bound on a package's power, ten times that of any processor. A counter that was reset or jumps
/// looks as if it had wrapped, and would add up to 262 kJ.
constexpr double max_package_watts = 10'000;

/// Returns the first line of a file in sysfs; empty if it cannot be read.
std::string line_of(const fs::path& path) {
  std::string text(256, '\0');
  try {
    const auto file = Descriptor::to_read(path);
    text.resize(static_cast<std::size_t>(file.read_some(0, text.data(), std::ssize(text))));
  } catch (const Error&) {
    return "";
  }
  return text.substr(0, text.find('\n'));
}

/// Returns the number at the start of a line: "123456" or "123456 J 1467390612345678 us".
std::optional<double> number_of(const std::string& line) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  const bool ended = end == line.data() + line.size() || *end == ' ';
  if (error != std::errc{} || !ended) return {};
  return static_cast<double>(value);
}

fs::path cray_counter(const fs::path& sysfs) {
  return sysfs / "cray/pm_counters/energy";
}

/// Returns the package domains, which count microjoules.
std::vector<EnergyCounter> rapl_counters(const fs::path& sysfs) {
  static const std::regex top_level("intel-rapl:[0-9]+");
  std::vector<EnergyCounter> counters;
  std::error_code error;
  for (const auto& zone : fs::directory_iterator(sysfs / "class/powercap", error)) {
    if (!std::regex_match(zone.path().filename().string(), top_level)) continue;
    if (!line_of(zone.path() / "name").starts_with("package-")) continue;
    const auto range = number_of(line_of(zone.path() / "max_energy_range_uj"));
    counters.push_back({.path = zone.path() / "energy_uj",
                        .joules_per_unit = 1e-6,
                        .range = range.value_or(0),
                        .max_watts = max_package_watts});
  }
  return counters;
}

/// Takes a counter's new reading; returns the joules since the last one.
std::optional<double> take(EnergyCounter& counter, std::optional<double> now) {
  if (!now) return {};
  double units = *now - std::exchange(counter.before, *now);
  const double seconds = seconds_since(std::exchange(counter.read, Clock::now()));
  if (units < 0) units += counter.range;
  const double joules = units * counter.joules_per_unit;
  if (joules < 0 || joules > counter.max_watts * seconds) return {};  // reset
  return joules;
}

std::optional<double> reading_of(const EnergyCounter& counter) {
  return number_of(line_of(counter.path));
}

/// Takes the first reading; returns false if there is none.
bool start(EnergyCounter& counter) {
  const auto first = reading_of(counter);
  counter.before = first.value_or(0);
  counter.read = Clock::now();
  return first.has_value();
}

}  // namespace

EnergyMeter::GpuReading EnergyMeter::reading_of_gpu() {
  if (kind() != Kind::cuda) return {};
  return [] { return gpu_energy(identity()); };
}

EnergyMeter::EnergyMeter(bool answers_for_node, const fs::path& sysfs, GpuReading gpu)
    : reads_node_(answers_for_node),
      read_gpu_(std::move(gpu)),
      whole_node_(number_of(line_of(cray_counter(sysfs))).has_value()) {
  if (whole_node_) read_gpu_ = {};
  if (reads_node_ && whole_node_) counters_.push_back({.path = cray_counter(sysfs)});
  if (reads_node_ && !whole_node_) counters_ = rapl_counters(sysfs);
  // Counts either all CPU packages or none, because a partial sum would be reported as the node's
  // energy.
  if (!std::ranges::all_of(counters_, start)) counters_.clear();
  if (const auto first = read_gpu_ ? read_gpu_() : std::nullopt)
    gpu_ = {.joules_per_unit = 1e-3, .before = static_cast<double>(*first)};
}

std::optional<double> EnergyMeter::joules() {
  if (read_gpu_ ? !gpu_ : reads_node_ && counters_.empty()) return {};
  double sum = 0;
  bool known = true;
  const auto add = [&](std::optional<double> part) {
    known = known && part.has_value();
    sum += part.value_or(0);
  };
  // Reads all counters, so that the next difference starts here.
  if (gpu_) add(take(*gpu_, read_gpu_()));
  for (auto& counter : counters_) add(take(counter, reading_of(counter)));
  if (!known) return {};
  return sum;
}

std::string EnergyMeter::describe() const {
  std::string text;
  if (!counters_.empty())
    text = whole_node_ ? "Cray pm_counters (whole node)"
                       : fmt::format("RAPL ({} package{})", counters_.size(),
                                     counters_.size() == 1 ? "" : "s");
  if (gpu_) text += std::string(text.empty() ? "" : " and ") + "NVML (each GPU)";
  return text;
}

}  // namespace llamesh::device
