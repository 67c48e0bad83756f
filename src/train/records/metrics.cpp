#include "train/records/metrics.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/clock.hpp"
#include "core/nan_sign.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "train/records/step_quantities.hpp"

namespace llamesh::train {
namespace {

/// Returns the time, to the millisecond.
double rounded_unix_time() {
  return std::round(unix_time() * 1e3) / 1e3;
}

/// Returns the step in a metrics.jsonl line, or -1. Does not parse the line: a resume scans all of
/// them.
std::int64_t step_of(std::string_view line) {
  constexpr std::string_view key = "\"step\":";
  const auto at = line.find(key);
  if (at == line.npos) return -1;
  line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ', at + key.size())));
  std::int64_t step = -1;
  std::from_chars(line.data(), line.data() + line.size(), step);
  return step;
}

/// Returns a number in a line of ours, without parsing the line; NaN if it has none.
double number_in(std::string_view line, std::string_view key) {
  double value = std::numeric_limits<double>::quiet_NaN();
  if (const auto at = line.find(key); at != line.npos)
    std::from_chars(line.data() + at + key.size(), line.data() + line.size(), value);
  return value;
}

/// Adds a step's line. Events have no duration.
void add_step(EarlierSteps& steps, std::string_view line, std::int64_t last_kept) {
  const double seconds = number_in(line, "\"seconds\":");
  const double time = number_in(line, "\"time\":");
  if (!line.starts_with("{\"step\":") || !std::isfinite(seconds)) return;
  (step_of(line) <= last_kept ? steps.kept : steps.dropped) += seconds;
  if (std::isfinite(time)) steps.last_end = time;
}

/// Returns true if the file is empty or begins like our lines; a truncated first line counts as far
/// as it goes.
bool is_own(const Descriptor& file) {
  std::array<char, 8> begin{};
  const auto count = file.read_some(0, begin.data(), std::ssize(begin));
  const std::string_view text(begin.data(), static_cast<std::size_t>(count));
  return std::string_view("{\"step\":").starts_with(text) ||
         std::string_view("{\"event\":").starts_with(text);
}

/// Returns true if the line is complete. After a power loss, bytes missing on disk may read as
/// zeros, with other lines after them.
bool is_whole(std::string_view line, bool ended) {
  return ended && line.find('\0') == line.npos;
}

/// Keeps the complete lines up to `step`. The old file remains until the new one is on disk.
EarlierSteps cut_after(const std::filesystem::path& path, const Descriptor& file,
                       std::int64_t step) {
  std::int64_t dropped = 0;
  EarlierSteps steps;
  for_each_line(file, [&](std::string_view line, bool ended) {
    const bool whole = is_whole(line, ended);
    dropped += !whole || step_of(line) > step ? 1 : 0;
    if (whole) add_step(steps, line, step);
  });
  if (dropped == 0) return steps;
  replace_durably(path, [&](Descriptor& kept) {
    std::string lines;
    for_each_line(file, [&](std::string_view line, bool ended) {
      if (is_whole(line, ended) && step_of(line) <= step) lines.append(line) += '\n';
      if (lines.size() > 1 << 20) kept.append(std::exchange(lines, {}));
    });
    kept.append(lines);
  });
  spdlog::info("{}: removed {} line{} that a killed launch wrote after step {}",
               path.filename().string(), dropped, dropped == 1 ? "" : "s", step);
  return steps;
}

Descriptor open_metrics(const std::filesystem::path& path, std::int64_t step,
                        EarlierSteps& earlier) {
  const auto open = [&] { return Descriptor::to_write(path, O_RDWR | O_CREAT | O_APPEND); };
  const auto file = open();
  if (is_own(file))
    earlier = cut_after(path, file, step);
  else
    spdlog::warn("{} is not a metrics file: it is now {}", path.string(),
                 quarantine(path, path).filename().string());
  return open();
}

nlohmann::ordered_json to_json(const ExpertLoads& loads) {
  nlohmann::ordered_json json;
  for (const auto& [name, member] : expert_loads) json[name] = loads.*member;
  return json;
}

nlohmann::ordered_json to_json(const ExpertBalance& experts) {
  auto json = to_json(experts.all);
  if (experts.z_loss) json["z_loss"] = *experts.z_loss;
  for (const auto& [layer, loads] : experts.layers)
    json["layers"][fmt::format("{}", layer)] = to_json(loads);
  return json;
}

template <class T>
const T& to_json(const T& value) {
  return value;
}

/// Sets a key, or one in an object: "memory.peak".
template <class T>
void set(nlohmann::ordered_json& line, std::string_view key, const T& value) {
  const auto dot = key.find('.');
  if (dot == key.npos)
    line[key] = to_json(value);
  else
    set(line[key.substr(0, dot)], key.substr(dot + 1), value);
}

/// Leaves out what is unknown.
template <class T>
void set(nlohmann::ordered_json& line, std::string_view key, const std::optional<T>& value) {
  if (value) set(line, key, *value);
}

template <class T>
bool is_present(const StepRecord& record, const Quantity<T>& quantity) {
  if constexpr (requires(const T& value) { value.empty(); })
    if (quantity.presence == Presence::unless_empty) return !(record.*quantity.member).empty();
  return quantity.presence != Presence::with_axes || !record.exposed.empty();
}

/// Formats what every model has.
std::vector<std::string> dense_log_fields(const StepRecord& r, std::int64_t total_steps) {
  const auto mebibytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return {
      fmt::format("step {:>{}}/{}", r.step, fmt::formatted_size("{}", total_steps), total_steps),
      fmt::format("loss {:.4f}", without_nan_sign(r.loss)),
      fmt::format("{:.0f} tokens/s", r.tokens_per_second),
      r.mfu ? fmt::format("MFU {:.0f} %", 100 * *r.mfu) : "MFU -",
      fmt::format("grad norm {:.3f}", without_nan_sign(r.grad_norm)),
      fmt::format("lr {:.2e}", r.lr),
      fmt::format("memory {:.1f}/{:.1f} MiB", mebibytes(r.allocated_after_step),
                  mebibytes(r.peak))};
}

}  // namespace

std::int64_t last_step_of(const std::filesystem::path& path) {
  std::int64_t last = -1;
  const auto file = Descriptor::to_read(path);
  if (!is_own(file)) return last;
  for_each_line(file, [&](std::string_view line, bool ended) {
    if (ended) last = std::max(last, step_of(line));
  });
  return last;
}

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t step)
    : file_(open_metrics(path, step, earlier_)) {}

/// Writes at once, so that a concurrent reader sees whole lines.
void MetricsFile::append(const std::string& line) {
  file_.append(line + '\n');
}

void MetricsFile::write(StepRecord record) {
  record.time = rounded_unix_time();
  nlohmann::ordered_json line;
  for_each_quantity([&](const auto& quantity) {
    if (is_present(record, quantity)) set(line, quantity.key, record.*quantity.member);
  });
  append(line.dump());
}

void MetricsFile::write_validation(const StepRecord& record, const std::string& of) {
  nlohmann::ordered_json line = {{"event", "validation"}, {"step", record.step}};
  for_each_quantity([&](const auto& quantity) {
    if (quantity.measured == Measured::in_validation_too)
      set(line, quantity.key, record.*quantity.member);
  });
  if (of != default_validation_set) line["set"] = of;
  append(line.dump());
}

void MetricsFile::write_state_hashes(std::int64_t step, const StateHashes& hashes) {
  append(
      nlohmann::ordered_json{{"event", "state_hash"}, {"step", step}, {"hashes", hashes}}.dump());
}

void MetricsFile::write_samples(std::int64_t step, const std::vector<SampleText>& samples) {
  nlohmann::ordered_json texts = nlohmann::ordered_json::array();
  for (const auto& [prompt, text] : samples) texts.push_back({{"prompt", prompt}, {"text", text}});
  const nlohmann::ordered_json line = {{"event", "samples"}, {"step", step}, {"texts", texts}};
  append(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void MetricsFile::write_event(const std::string& name, std::int64_t step,
                              const std::string& detail) {
  append(nlohmann::ordered_json{
      {"event", name}, {"step", step}, {"detail", detail}, {"time", rounded_unix_time()}}
             .dump());
}

void MetricsFile::write_goodput(std::int64_t step,
                                const std::vector<std::pair<std::string, double>>& parts) {
  nlohmann::ordered_json line = {{"event", "goodput"}, {"step", step}};
  for (const auto& [name, seconds] : parts) line[name] = std::round(1e3 * seconds) / 1e3;
  append(line.dump());
}

void MetricsFile::write_start(const std::string& name, std::int64_t step, const std::string& detail,
                              const std::string& mesh) {
  const auto& self = this_process();
  nlohmann::ordered_json line = {{"event", name},
                                 {"step", step},
                                 {"detail", detail},
                                 {"time", rounded_unix_time()},
                                 {"ranks", self.world_size},
                                 {"mesh", mesh},
                                 {"host", self.host},
                                 {"version", version()},
                                 {"command", printable(command_line())}};
  // Text with a space, which no name from git has, says that there is no commit.
  if (const std::string_view built_from = commit(); built_from.find(' ') == built_from.npos)
    line["commit"] = built_from;
  if (const auto job = number_in_environment("SLURM_JOB_ID"); !job.empty()) line["job"] = job;
  append(line.dump());
}

void MetricsFile::write_startup(std::int64_t step,
                                const std::vector<std::pair<std::string, double>>& phases) {
  nlohmann::ordered_json seconds = nlohmann::ordered_json::object();
  for (const auto& [name, duration] : phases) seconds[name] = duration;
  append(nlohmann::ordered_json{{"event", "startup"}, {"step", step}, {"phases", seconds}}.dump());
}

std::string describe_pairs(const StepRecord& r) {
  if (!r.reward_margin) return "";
  return fmt::format("margin {:.3f}, accuracy {:.2f}", *r.reward_margin, *r.reward_accuracy);
}

std::vector<std::string> log_fields(const StepRecord& r, std::int64_t total_steps) {
  auto fields = dense_log_fields(r, total_steps);
  if (r.experts)
    fields.push_back(fmt::format("expert load {:.2f} to {:.2f}, aux loss {:.4f}",
                                 r.experts->all.min_load, r.experts->all.max_load,
                                 without_nan_sign(r.experts->all.aux_loss)));
  if (const auto pairs = describe_pairs(r); !pairs.empty()) fields.push_back(pairs);
  return fields;
}

}  // namespace llamesh::train
