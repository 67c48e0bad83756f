#include "app/supervise/launch_watch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/process.hpp"
#include "core/text.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// Time for srun to start the program, in multiples of MPI_Init's limit: a container may have to be
/// unpacked first.
constexpr int mpi_limits_to_start = 5;
/// Time for srun to end once state.json says that the run has ended. After a failure all ranks are
/// gone within seconds. After a last save, rank 0 writes the report, and MPI_Finalize may take its
/// limit.
constexpr auto grace_after_failure = 8s;
constexpr std::chrono::seconds least_grace_after_end = 90s;
constexpr auto time_for_report = 30s;
constexpr auto started_file_variable = "LLAMESH_STARTED_FILE";
constexpr std::string_view unfit_prefix = "unfit ";

void announce(std::string_view text) {
  const char* file = std::getenv(started_file_variable);
  if (file == nullptr) return;
  try {
    Descriptor::to_write(file, O_WRONLY | O_CREAT).append(text);
  } catch (const Error& error) {
    spdlog::warn("cannot notify the supervisor: {}; check that the run folder can be written",
                 error.what());
  }
}

}  // namespace

void announce_start() {
  announce("");
}

void announce_end() {
  announce("ended\n");
}

void announce_unfit_host(const std::string& reason) {
  announce(fmt::format("{}{} {}\n", unfit_prefix, this_process().host, reason));
}

LaunchWatch::LaunchWatch(const fs::path& run_folder, const LaunchRecord& record,
                         std::chrono::seconds mpi_limit)
    : started_file_(fs::absolute(run_folder / ".started")),
      record_(record),
      start_limit_(mpi_limits_to_start * mpi_limit),
      grace_after_end_(std::max(least_grace_after_end, mpi_limit + time_for_report)) {
  std::error_code ignored;
  fs::remove(started_file_, ignored);
  setenv(started_file_variable, started_file_.c_str(), 1);
}

LaunchWatch::~LaunchWatch() {
  std::error_code ignored;
  fs::remove(started_file_, ignored);
}

bool LaunchWatch::has_started() {
  std::error_code ignored;
  has_started_ = has_started_ || fs::exists(started_file_, ignored) || record_.has_started();
  return has_started_;
}

/// Returns what the ranks have announced; "" if nothing can be read.
std::string LaunchWatch::announced() const {
  std::error_code ignored;
  if (!fs::is_regular_file(started_file_, ignored)) return "";
  try {
    return read_file(started_file_, 1 << 16);
  } catch (const Error&) {
    return "";
  }
}

bool LaunchWatch::has_ended() const {
  return !announced().empty();
}

std::optional<LaunchWatch::Unfit> LaunchWatch::unfit_host() const {
  std::istringstream lines(announced());
  for (std::string line; std::getline(lines, line);) {
    const auto host_end = line.find(' ', unfit_prefix.size());
    if (!line.starts_with(unfit_prefix) || host_end == line.npos) continue;
    return Unfit{line.substr(unfit_prefix.size(), host_end - unfit_prefix.size()),
                 printable(line.substr(host_end + 1))};
  }
  return {};
}

std::optional<std::string> LaunchWatch::waits_for_start() {
  if (has_started() || start_limit_ == 0s || Clock::now() - begun_ <= start_limit_) return {};
  return fmt::format(
      "killing srun: it did not start llamesh within {} s (five times LLAMESH_MPI_TIMEOUT); raise "
      "that if nodes need longer",
      start_limit_.count());
}

std::optional<std::string> LaunchWatch::reason_to_end() {
  if (!record_.has_ended()) return waits_for_start();
  const auto now = Clock::now();
  if (!ended_) ended_ = now;
  const bool failed = record_.end(0).kind == LaunchEnd::Kind::failed;
  const auto grace = failed ? grace_after_failure : grace_after_end_;
  if (now - *ended_ < grace) return {};
  return fmt::format("killing srun: it still waits {} s after the end of the run", grace.count());
}

}  // namespace llamesh::app
