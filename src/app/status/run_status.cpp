#include "app/status/run_status.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "checkpoint/format/format.hpp"
#include "checkpoint/store/lease.hpp"
#include "checkpoint/store/store_folder.hpp"
#include "core/file.hpp"
#include "core/median.hpp"
#include "core/text.hpp"
#include "train/records/run_metrics.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t tail_bytes = 1 << 18;  // of metrics.jsonl: some hundred lines
constexpr std::size_t newest_steps = 20;      // of them, to measure the speed by
/// Age of the lease, in seconds, from which a run counts as dead. A run touches its lease every 5
/// s; a network file system may show that up to a minute later.
constexpr double silent_when_dead = 75;

double age_of(const fs::path& path) {
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  if (error) return 0;
  const auto age = fs::file_time_type::clock::now() - written;
  return std::max(0.0, std::chrono::duration<double>(age).count());
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

/// Reads the newest lines of metrics.jsonl. Skips a last line without an end, which is incomplete.
train::RunMetrics newest_metrics(const fs::path& path) {
  train::RunMetrics run;
  if (!is_there(path)) return run;
  const auto file = Descriptor::to_read(path);
  const auto begin = std::max<std::int64_t>(0, file.bytes() - tail_bytes);
  std::string text(tail_bytes, '\0');
  text.resize(static_cast<std::size_t>(file.read_some(begin, text.data(), tail_bytes)));
  std::string_view rest = text;
  if (begin > 0) rest.remove_prefix(std::min(rest.size(), rest.find('\n')));
  for (auto end = rest.find('\n'); end != rest.npos; end = rest.find('\n')) {
    if (end > 0 && !train::add_line(rest.substr(0, end), run)) ++run.unreadable;
    rest.remove_prefix(end + 1);
  }
  return run;
}

std::optional<double> median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return {};
  return llamesh::median(std::move(values));
}

/// Returns `field` for the newest steps, the newest first.
template <class Field>
std::vector<double> newest(const train::RunMetrics& run, Field field) {
  std::vector<double> values;
  for (auto at = run.steps.rbegin(); at != run.steps.rend() && values.size() < newest_steps; ++at)
    values.push_back(field(at->second));
  return values;
}

/// Returns the seconds per step, including the time between steps if it is known.
std::optional<double> seconds_of_step(const train::RunMetrics& run) {
  const auto times = newest(run, [](auto& step) { return step.time; });
  const bool restarted = !run.steps.empty() && !run.resumes.empty() &&
                         run.resumes.back() > run.steps.rbegin()->first - std::ssize(times);
  const double passed = times.size() < 2 || restarted ? 0 : times.front() - times.back();
  if (passed > 0) return passed / static_cast<double>(times.size() - 1);
  return median(newest(run, [](auto& step) { return step.seconds; }));
}

std::optional<RunStatus::Checkpoint> newest_checkpoint(const fs::path& folder) {
  const auto all = checkpoint::committed_checkpoints(folder);
  if (all.empty()) return {};
  return RunStatus::Checkpoint{checkpoint::step_of(all.front()),
                               age_of(all.front() / checkpoint::manifest_name)};
}

/// Owner of the run folder: none yet, none any more, a job, or a job that died without releasing
/// it.
enum class Holder { none, released, alive, silent };

Holder holder_of(const fs::path& lease) {
  if (!is_there(lease)) return Holder::none;
  const auto file = Descriptor::to_read(lease);
  std::string text(4096, '\0');
  text.resize(static_cast<std::size_t>(file.read_some(0, text.data(), std::ssize(text))));
  if (checkpoint::parse_lease(text).job.empty()) return Holder::released;
  return age_of(lease) > silent_when_dead ? Holder::silent : Holder::alive;
}

std::string phase_of(const fs::path& folder, const std::optional<train::RunState>& state) {
  using enum train::RunPhase;
  const auto lease = folder / "checkpoints" / ".lease";
  const auto state_file = train::state_file(folder);
  const auto holder = holder_of(lease);
  const bool held = holder == Holder::alive;
  // A job that ends by itself writes its state, then releases the lease, which needs no room.
  if (state && state->phase == running)
    return held ? "running" : holder == Holder::released ? "failed" : "killed";
  // A job that failed a moment ago has touched its lease until then.
  if (held && (!is_there(state_file) || age_of(lease) + 12 < age_of(state_file))) return "starting";
  if (!state) return is_there(state_file) ? "unknown" : "not_started";
  return state->phase == done ? "done" : state->phase == stopped ? "stopped" : "failed";
}

std::string describe_goodput(const train::Goodput& goodput) {
  std::string parts;
  for (const auto& [name, seconds] : goodput.parts())
    if (name != "productive" && seconds >= 1)
      parts += fmt::format("{} {} {}", parts.empty() ? ":" : ",", name, clock_text(seconds));
  return fmt::format("{:.0f} % of {}{}", 100 * goodput.share().value_or(0),
                     clock_text(goodput.whole()), parts);
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string describe_failure(const Json& failure) {
  const auto part = [&](const char* key, const char* before) {
    const auto& value = failure[key];
    if (value.is_null()) return std::string();
    const auto text = value.is_string() ? value.get<std::string>() : value.dump();
    return text.empty() ? text : before + text;
  };
  std::string text = part("kind", " ") + part("rank", ", rank ") + part("host", " on ") +
                     part("phase", ", ") + part("collective", ", in ") + part("axis", " over ") +
                     part("detail", ": ") + part("at", " (") + (failure["at"].is_null() ? "" : ")");
  const auto begin = text.find_first_not_of(", :");
  return begin == text.npos ? "not described" : text.substr(begin);
}

}  // namespace

bool RunStatus::ended() const {
  return phase == "stopped" || phase == "done" || phase == "failed" || phase == "killed";
}

RunStatus read_status(const fs::path& run_folder) {
  std::error_code ignored;
  validate(fs::is_directory(run_folder, ignored),
           "{} is not a folder; give a run folder such as runs/tiny{}", run_folder.string(),
           did_you_mean_path(run_folder));
  const auto state = train::read_run_state(run_folder);
  const auto metrics = newest_metrics(run_folder / "metrics.jsonl");
  RunStatus status;
  status.phase = phase_of(run_folder, state);
  if (state) {
    status.step = state->step;
    if (state->steps > 0) status.steps = state->steps;
    status.restarts = state->starts - 1;
    if (state->joules) status.kilowatt_hours = *state->joules / 3.6e6;
    if (state->goodput.share()) status.goodput = state->goodput;
    status.reason = state->reason;
    status.best = state->best;
    status.failure = failure_of(*state);
    if (status.phase == "failed" && state->phase == train::RunPhase::running)
      status.reason = "it could not write state.json, as on a full disk; its log may say more";
  }
  if (!metrics.steps.empty()) {
    const auto& [step, last] = *metrics.steps.rbegin();
    status.step = std::max(status.step.value_or(0), step);
    if (std::isfinite(last.loss)) status.loss = last.loss;
    status.tokens_per_second =
        median(newest(metrics, [](auto& one) { return one.tokens_per_second; }));
  }
  const auto seconds = seconds_of_step(metrics);
  if (status.phase == "running" && status.steps && status.step && seconds)
    status.eta_seconds =
        static_cast<double>(std::max<std::int64_t>(0, *status.steps - *status.step)) * *seconds;
  status.checkpoint = newest_checkpoint(run_folder / "checkpoints");
  const auto on_disk = status.checkpoint ? status.checkpoint->step : 0;
  if (status.phase != "done" && metrics.memory_step > on_disk)
    status.memory_checkpoint = metrics.memory_step;
  if (const auto file = run_folder / "failure.json"; is_there(file))
    if (auto failure = parse_failure(read_file(file, 1 << 20)); !failure.is_null())
      status.failure = std::move(failure);
  return status;
}

Json to_json(const RunStatus& status) {
  Json checkpoint = nullptr;
  if (status.checkpoint)
    checkpoint = {{"step", status.checkpoint->step},
                  {"age_seconds", status.checkpoint->age_seconds}};
  Json best = nullptr;
  if (status.best) best = {{"step", status.best->step}, {"loss", status.best->loss}};
  return {{"phase", status.phase},
          {"step", or_null(status.step)},
          {"steps", or_null(status.steps)},
          {"loss", or_null(status.loss)},
          {"tokens_per_second", or_null(status.tokens_per_second)},
          {"eta_seconds", or_null(status.eta_seconds)},
          {"checkpoint", checkpoint},
          {"memory_checkpoint_step", or_null(status.memory_checkpoint)},
          {"best", best},
          {"restarts", or_null(status.restarts)},
          {"kilowatt_hours", or_null(status.kilowatt_hours)},
          {"goodput", status.goodput ? train::to_json(*status.goodput) : Json(nullptr)},
          {"failure", status.failure}};
}

std::vector<std::string> to_lines(const RunStatus& status, const std::string& name) {
  auto phase = status.phase;
  std::ranges::replace(phase, '_', ' ');
  if (phase == "not started") phase = "no run has started here";
  std::string first = fmt::format("{}: {}", name, phase);
  if (status.step) first += fmt::format(", step {}", *status.step);
  if (status.steps) first += fmt::format(" of {}", *status.steps);
  std::vector<std::string> lines{first};
  const auto add = [&](const char* label, const std::string& text) {
    lines.push_back(fmt::format("  {:<12}{}", label, text));
  };
  if (status.loss) add("loss", fmt::format("{:.4f}", *status.loss));
  if (status.tokens_per_second) add("tokens/s", fmt::format("{:.0f}", *status.tokens_per_second));
  if (status.eta_seconds) add("time left", clock_text(*status.eta_seconds));
  if (status.checkpoint)
    add("checkpoint", fmt::format("of step {}, {} ago", status.checkpoint->step,
                                  clock_text(status.checkpoint->age_seconds)));
  if (status.memory_checkpoint)
    add("in memory", fmt::format("checkpoint of step {}", *status.memory_checkpoint));
  if (status.best)
    add("best",
        fmt::format("of step {}, validation loss {:.4f}", status.best->step, status.best->loss));
  if (status.restarts) add("restarts", fmt::format("{}", *status.restarts));
  if (status.kilowatt_hours) add("energy", fmt::format("{:.3g} kWh", *status.kilowatt_hours));
  if (status.goodput) add("goodput", describe_goodput(*status.goodput));
  const bool failure_has_reason =
      !status.failure.is_null() && status.failure["detail"] == status.reason;
  if (status.ended() && !status.reason.empty() && !failure_has_reason) add("reason", status.reason);
  if (!status.failure.is_null()) add("failure", describe_failure(status.failure));
  return lines;
}

}  // namespace llamesh::app
