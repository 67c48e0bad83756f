#include "train/job/startup.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

namespace llamesh::train {
namespace {

double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Returns the seconds since this process started: field 22 in /proc/self/stat, see proc(5).
double process_age() {
  std::ifstream in("/proc/self/stat");
  std::string text(std::istreambuf_iterator<char>(in), {});
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) fields >> field;
  double ticks = 0;
  if (!(fields >> ticks)) return 0;
  return now(CLOCK_BOOTTIME) - ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double since_launch() {
  if (const char* text = std::getenv("LLAMESH_LAUNCH_TIME")) {
    char* end = nullptr;
    const double launched = std::strtod(text, &end);
    if (end != text && *end == '\0') return now(CLOCK_REALTIME) - launched;
  }
  return process_age();
}

}  // namespace

Startup::Startup() : phases_{{"launch", since_launch()}}, last_(Clock::now()) {}

void Startup::end_phase(std::string name) {
  const auto end = Clock::now();
  phases_.emplace_back(std::move(name), std::chrono::duration<double>(end - last_).count());
  last_ = end;
}

double Startup::seconds() const {
  double all = std::chrono::duration<double>(Clock::now() - last_).count();
  for (const auto& [name, duration] : phases_) all += duration;
  return all;
}

std::string Startup::describe() const {
  std::string text;
  double all = 0;
  for (const auto& [name, seconds] : phases_) {
    text += fmt::format("{}{} {:.2f} s", text.empty() ? "" : ", ", name, seconds);
    all += seconds;
  }
  return text + fmt::format("; {:.2f} s in all", all);
}

}  // namespace llamesh::train
