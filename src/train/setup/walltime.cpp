#include "train/setup/walltime.hpp"

#include <charconv>
#include <cstdlib>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/slurm/own_job.hpp"
#include "core/text.hpp"

namespace llamesh::train {
namespace {

constexpr std::int64_t max_seconds = 9'000'000'000;  // std::chrono counts nanoseconds in 63 bits

/// Seconds since 1970 at which this program was loaded.
const double program_start = unix_time();

/// Returns true if a job that ended at this time is not the one that started this program.
bool is_stale(std::chrono::duration<double> end) {
  return end.count() < program_start;
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  if (value < 0 || value > max_seconds) return {};
  return value;
}

/// Returns the end time that an environment variable gives. Ignores, with a warning, text that is
/// no time, and an earlier job's time.
std::optional<std::chrono::duration<double>> end_time_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return {};
  const auto end = parse_end_time(text);
  if (end && !is_stale(*end)) return end;
  spdlog::warn("{} is '{}', {}: it is ignored", variable, excerpt(text),
               end ? "a time before this launch" : "which is no time in seconds since 1970");
  return {};
}

}  // namespace

std::optional<std::chrono::duration<double>> parse_end_time(std::string_view text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  if (!(value >= 0 && value <= static_cast<double>(max_seconds))) return {};
  return std::chrono::duration<double>(value);
}

std::optional<std::chrono::seconds> parse_time_left(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::int64_t days = 0;
  if (const auto dash = text.find('-'); dash != std::string_view::npos) {
    const auto value = number(text.substr(0, dash));
    if (!value) return {};
    days = *value;
    text.remove_prefix(dash + 1);
  }
  std::vector<std::int64_t> parts;
  for (;;) {
    const auto colon = text.find(':');
    const auto value = number(text.substr(0, colon));
    if (!value) return {};
    parts.push_back(*value);
    if (colon == std::string_view::npos) break;
    text.remove_prefix(colon + 1);
  }
  if (parts.size() < 2 || parts.size() > 3) return {};
  std::int64_t seconds = 0;
  for (const auto part : parts) seconds = 60 * seconds + part;
  seconds += 86400 * days;
  if (seconds > max_seconds) return {};
  return std::chrono::seconds(seconds);
}

void refuse_stale_end_time() {
  const char* text = std::getenv("LLAMESH_JOB_END_TIME");
  const auto end = text == nullptr ? std::nullopt : parse_end_time(text);
  validate(!end || !is_stale(*end),
           "LLAMESH_JOB_END_TIME is {}, a time before this launch; unset or renew it", text);
}

Walltime::Walltime() : Walltime(own_job_id() ? Ask([] { return ask_squeue("%L"); }) : Ask()) {
  // Job scripts of other resource managers set the first; newer Slurm versions set the second at
  // the start, so that no query is needed.
  auto end = end_time_in("LLAMESH_JOB_END_TIME");
  if (!end) end = end_time_in("SLURM_JOB_END_TIME");
  if (!end) return;
  const auto left =
      *end - std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
  const std::lock_guard lock(mutex_);
  if (end_) return;
  asked_ = true;
  end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(left);
}

Walltime::Walltime(Ask ask, std::chrono::milliseconds interval) {
  if (!ask) return;
  thread_ = std::jthread([this, ask = std::move(ask), interval](const std::stop_token& stop) {
    keep_asking(stop, ask, interval);
  });
}

void Walltime::keep_asking(const std::stop_token& stop, const Ask& ask,
                           std::chrono::milliseconds interval) {
  while (!stop.stop_requested()) {
    const auto answer = ask();
    const auto now = Clock::now();
    std::unique_lock lock(mutex_);
    if (const auto left = parse_time_left(answer)) {
      end_ = now + *left;
    } else if (answer.starts_with("UNLIMITED")) {
      end_.reset();
    }  // no answer, or one that cannot be read: the known limit remains
    asked_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, stop, interval, [this] { return ask_now_; });
    ask_now_ = false;
  }
}

void Walltime::ask_again(std::chrono::milliseconds timeout) {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  asked_ = false;
  ask_now_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, timeout, [this] { return asked_; });
}

std::optional<std::chrono::duration<double>> Walltime::left(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (thread_.joinable() && timeout.count() > 0)
    changed_.wait_for(lock, timeout, [this] { return asked_; });
  if (!end_) return {};
  return *end_ - Clock::now();
}

}  // namespace llamesh::train
