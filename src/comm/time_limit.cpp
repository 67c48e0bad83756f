#include "comm/time_limit.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "comm/session.hpp"
#include "core/error.hpp"
#include "core/process.hpp"

namespace llamesh::comm {

std::chrono::seconds mpi_timeout(const Environment& environment) {
  constexpr std::chrono::seconds usual{300};
  const char* text = environment("LLAMESH_MPI_TIMEOUT");
  if (text == nullptr) return usual;
  const std::string_view view(text);
  int seconds = -1;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), seconds);
  validate(error == std::errc{} && end == view.data() + view.size() && seconds >= 0,
           "LLAMESH_MPI_TIMEOUT is '{}'; give whole seconds, or 0 for no limit", view);
  return std::chrono::seconds(seconds);
}

TimeLimit::TimeLimit(std::string doing, std::chrono::seconds limit, int rank)
    : doing_(std::move(doing)), limit_(limit), rank_(rank) {
  if (limit_.count() > 0)
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

void TimeLimit::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto stopped_within = [&](std::chrono::seconds time) {
    ended_.wait_for(lock, stop, time, [] { return false; });
    return stop.stop_requested();
  };
  // All ranks wait equally long; the first to end takes the others with it.
  if (stopped_within(limit_) || stopped_within(std::chrono::seconds(2 * std::min(rank_, 2))))
    return;
  const auto line = fmt::format(
      "llamesh: rank {} on {}: in {} for {} s: another rank has not arrived (stopped, or on a node "
      "that cannot be reached); LLAMESH_MPI_TIMEOUT sets this limit\n",
      rank_, this_process().host, doing_, limit_.count());
  static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  end_process_soon(ExitCode::stopped_early);
  abort_job(ExitCode::stopped_early);
}

}  // namespace llamesh::comm
