#include "train/records/run_metrics.hpp"

#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "core/file.hpp"
#include "core/json.hpp"
#include "train/records/step_quantities.hpp"

namespace llamesh::train {
namespace {

using nlohmann::json;

double number_at(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return found->get<double>();
}

// Set a member of the record to what a line has for its key; unknown: null.

void read(const json& value, double& to) {
  to = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}
void read(const json& value, std::int64_t& to) {
  double number = 0;
  read(value, number);
  to = number >= 0 && number < 0x1p63 ? value.get<std::int64_t>() : unknown_count;
}
void read(const json& value, std::optional<double>& to) {
  if (value.is_number()) to = value.get<double>();
}
template <class T>
void read(const json& value, std::map<std::string, T>& to) {
  for (const auto& [axis, of_axis] : value.items())
    if (of_axis.is_number()) read(of_axis, to[axis]);
}
void read(const json& value, std::optional<ExpertBalance>& to) {
  if (!value.is_object()) return;
  to.emplace();
  read(value.value("z_loss", json()), to->z_loss);
  for (const auto& [name, member] : expert_loads) read(value.value(name, json()), to->all.*member);
}

/// Returns a key's value, or that of a key in an object ("memory.peak"); null if there is none.
const json& value_at(const json& line, std::string_view key) {
  static const json null;
  const auto dot = key.find('.');
  const auto found = line.find(key.substr(0, dot));
  if (found == line.end()) return null;
  return dot == key.npos ? *found : value_at(*found, key.substr(dot + 1));
}

/// Returns true if whatever has parts in metrics.jsonl is an object in this line, if it is there.
bool has_shape_of_step(const json& line) {
  bool fits = true;
  for_each_quantity([&](const auto& quantity) {
    const std::string_view key = quantity.key;
    const auto dot = key.find('.');
    if (dot == key.npos && requires { known(StepRecord().*quantity.member); }) return;
    const auto found = line.find(key.substr(0, dot));
    fits = fits && (found == line.end() || found->is_object());
  });
  return fits;
}

ReadStep read_step(const json& line) {
  ReadStep step;
  for_each_quantity(
      [&](const auto& quantity) { read(value_at(line, quantity.key), step.*quantity.member); });
  return step;
}

/// Returns the seconds since the previous step, or since this launch; if the lines lack that or it
/// is impossible, the step's own seconds.
double seconds_before(const RunMetrics& run, std::int64_t step, const ReadStep& metrics) {
  const auto next = run.steps.lower_bound(step);
  const bool first = next == run.steps.begin() ||
                     (!run.starts.empty() && std::prev(next)->first <= run.starts.back().step);
  const double since = !first               ? std::prev(next)->second.time
                       : run.starts.empty() ? std::numeric_limits<double>::quiet_NaN()
                                            : run.starts.back().time;
  const double passed = metrics.time - since;
  if (passed >= 0 && passed < 1e9) return passed;
  return metrics.seconds >= 0 && metrics.seconds < 1e9 ? metrics.seconds : 0;
}

void add_step(std::int64_t step, ReadStep metrics, RunMetrics& run) {
  const auto next = run.steps.lower_bound(step);
  metrics.elapsed = (next == run.steps.begin() ? 0 : std::prev(next)->second.elapsed) +
                    seconds_before(run, step, metrics);
  run.steps[step] = std::move(metrics);
}

std::string text(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

void add_phases(const json& line, RunMetrics& run) {
  if (run.starts.empty()) return;
  const auto phases = line.find("phases");
  if (phases == line.end() || !phases->is_object()) return;
  for (const auto& [name, seconds] : phases->items())
    if (seconds.is_number()) run.starts.back().phases.emplace_back(name, seconds.get<double>());
}

void add_state_hashes(std::int64_t step, const json& line, RunMetrics& run) {
  const auto hashes = line.find("hashes");
  if (hashes == line.end() || !hashes->is_object()) return;
  auto& of_step = run.state_hashes[step];
  of_step.clear();
  for (const auto& [part, hash] : hashes->items())
    if (hash.is_string()) of_step[part] = hash.get<std::string>();
}

void add_samples(std::int64_t step, const json& line, RunMetrics& run) {
  const auto texts = line.find("texts");
  if (texts == line.end() || !texts->is_array()) return;
  auto& of_step = run.samples[step];
  of_step.clear();
  for (const auto& sample : *texts)
    of_step.push_back({text(sample, "prompt"), text(sample, "text")});
}

template <class BySteps>
void drop_after(BySteps& steps, std::int64_t step) {
  steps.erase(steps.upper_bound(step), steps.end());
}

/// The deciding set has the first line of a step.
void add_validation(std::int64_t step, const std::string& set, double loss, RunMetrics& run) {
  if (run.validation.empty()) run.validation_set = set;
  (set == run.validation_set ? run.validation : run.other_validation[set])[step] = loss;
}

void take_event(const std::string& event, std::int64_t step, const json& line, RunMetrics& run) {
  if (event == "validation") {
    add_validation(step, text(line, "set"), number_at(line, "loss"), run);
  } else if (event == "early_stop") {
    run.early_stop = step;
  } else if (event == "checkpoint") {
    ++run.checkpoints;
  } else if (event == "memory_checkpoint") {
    run.memory_step = step;
  } else if (event == "skipped") {
    run.skipped.insert(step);
  } else if (event == "spike") {
    run.spikes.insert(step);
  } else if (event == "startup") {
    add_phases(line, run);
  } else if (event == "state_hash") {
    add_state_hashes(step, line, run);
  } else if (event == "samples") {
    add_samples(step, line, run);
  } else if (event == "resume" || event == "start") {
    drop_after(run.steps, step);
    drop_after(run.validation, step);
    drop_after(run.state_hashes, step);
    drop_after(run.samples, step);
    for (auto& [set, losses] : run.other_validation) drop_after(losses, step);
    run.early_stop.reset();
    drop_after(run.skipped, step);
    drop_after(run.spikes, step);
    run.starts.push_back({.step = step,
                          .time = number_at(line, "time"),
                          .ranks = number_at(line, "ranks"),
                          .mesh = text(line, "mesh"),
                          .host = text(line, "host"),
                          .version = text(line, "version"),
                          .commit = text(line, "commit"),
                          .job = text(line, "job"),
                          .command = text(line, "command"),
                          .detail = text(line, "detail"),
                          .last_time = number_at(line, "time")});
    run.memory_step = std::min(run.memory_step, step);
    if (event == "resume" && step > 0) run.resumes.push_back(step);
  }
}

/// Parses a line; null if it is not JSON.
json parsed(std::string_view line) {
  try {
    return parse_json(line, "metrics.jsonl");
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

bool add_line(std::string_view text, RunMetrics& run) {
  const json line = parsed(text);
  if (!line.is_object() || !has_shape_of_step(line)) return false;
  const bool is_event = line.contains("event");
  if (is_event && !line["event"].is_string()) return false;
  const double step = number_at(line, "step");
  const bool has_step = step >= 0 && step < 1e15 && std::floor(step) == step;
  if (!has_step) return is_event;
  const auto index = static_cast<std::int64_t>(step);
  if (is_event)
    take_event(line["event"].get<std::string>(), index, line, run);
  else
    add_step(index, read_step(line), run);
  if (!run.starts.empty())
    run.starts.back().last_time = std::fmax(run.starts.back().last_time, number_at(line, "time"));
  return true;
}

RunMetrics read_lines(const std::filesystem::path& file) {
  RunMetrics run;
  // An unterminated line comes from a run that was killed, or is still being written.
  for_each_line(Descriptor::to_read(file), [&](std::string_view line, bool ended) {
    if (!line.empty() && !add_line(line, run) && ended) ++run.unreadable;
  });
  return run;
}

RunMetrics read_metrics(const std::filesystem::path& file) {
  std::error_code ignored;
  validate(std::filesystem::exists(file, ignored),
           "{} does not exist; give a run folder that llamesh train has written{}", file.string(),
           did_you_mean_path(file.parent_path()));
  RunMetrics run = read_lines(file);
  validate(!run.steps.empty(), "{} has no training step yet; train the run first", file.string());
  return run;
}

}  // namespace llamesh::train
