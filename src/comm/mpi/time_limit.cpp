#include "comm/mpi/time_limit.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/mpi/session.hpp"
#include "core/error.hpp"
#include "core/process.hpp"

namespace llamesh::comm {

namespace {

/// Returns the whole number of seconds in `text`, or -1 if it is anything else.
std::chrono::seconds seconds_in(std::string_view text) {
  int seconds = -1;
  const auto* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, seconds);
  return std::chrono::seconds(error == std::errc{} && stopped == end ? seconds : -1);
}

}  // namespace

std::chrono::seconds mpi_timeout(const Environment& environment, int ranks) {
  const char* text = environment("LLAMESH_MPI_TIMEOUT");
  if (text == nullptr) return std::chrono::minutes(std::min(1 + ranks / 1000, 10));
  const auto timeout = seconds_in(text);
  validate(timeout.count() >= 0,
           "LLAMESH_MPI_TIMEOUT is '{}'; give whole seconds, or 0 for no limit", text);
  return timeout;
}

std::chrono::seconds silence_limit(const Environment& environment) {
  constexpr std::chrono::seconds by_default(30), least(3);
  const char* text = environment("LLAMESH_SILENCE");
  if (text == nullptr) return by_default;
  const auto silence = seconds_in(text);
  validate(silence >= least, "LLAMESH_SILENCE is '{}'; give whole seconds, {} at least", text,
           least.count());
  return silence;
}

TimeLimit::TimeLimit(std::string doing, std::chrono::seconds limit, int rank,
                     std::function<bool()> told_to_end)
    : doing_(std::move(doing)), limit_(limit), rank_(rank), told_to_end_(std::move(told_to_end)) {
  if (limit_.count() > 0 || told_to_end_)
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

void TimeLimit::watch(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  constexpr auto between_looks = std::chrono::milliseconds(200);
  constexpr auto grace = std::chrono::seconds(4);
  // All ranks wait equally long; the first to end takes the others with it.
  const auto turn = std::chrono::seconds(std::min(rank_, 2));
  const auto begun = Clock::now();
  std::optional<Clock::time_point> told;
  std::unique_lock lock(mutex_);
  while (true) {
    ended_.wait_for(lock, stop, between_looks, [] { return false; });
    if (stop.stop_requested()) return;
    const auto now = Clock::now();
    if (limit_.count() > 0 && now - begun > limit_ + 2 * turn)
      end_job(
          fmt::format("in {} for {} s: another rank has not arrived (stopped, or on a node that "
                      "cannot be reached); LLAMESH_MPI_TIMEOUT sets this limit",
                      doing_, limit_.count()));
    if (!told && told_to_end_ && told_to_end_()) told = now;
    if (told && now - *told > grace + turn)
      end_job(fmt::format("told to end (SIGTERM) while {} waits for another rank", doing_));
  }
}

void TimeLimit::end_job(const std::string& why) const {
  const auto line = fmt::format("llamesh: rank {} on {}: {}\n", rank_, this_process().host, why);
  static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  end_process_soon(ExitCode::stopped_early);
  abort_job(ExitCode::stopped_early);
}

}  // namespace llamesh::comm
