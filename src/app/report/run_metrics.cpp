#include "app/report/run_metrics.hpp"

#include <cmath>
#include <limits>

#include "core/file.hpp"
#include "core/json.hpp"

namespace llamesh::app {
namespace {

using nlohmann::json;

double number(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return found->get<double>();
}

std::map<std::string, double> bytes_by_axis(const json& line, const char* key) {
  std::map<std::string, double> bytes;
  const json axes = line.value(key, json::object());
  for (const auto& [axis, value] : axes.items())
    if (value.is_number()) bytes[axis] = value.get<double>();
  return bytes;
}

StepMetrics step_metrics(const json& line) {
  return {.loss = number(line, "loss"),
          .grad_norm = number(line, "grad_norm"),
          .lr = number(line, "lr"),
          .tokens = number(line, "tokens"),
          .seconds = number(line, "seconds"),
          .tokens_per_second = number(line, "tokens_per_second"),
          .mfu = number(line, "mfu"),
          .valley = number(line.value("memory", json::object()), "valley"),
          .peak = number(line.value("memory", json::object()), "peak"),
          .time = number(line, "time"),
          .traffic = bytes_by_axis(line, "traffic"),
          .traffic_between_nodes = bytes_by_axis(line, "traffic_between_nodes")};
}

template <class Map>
void drop_after(Map& map, std::int64_t step) {
  map.erase(map.upper_bound(step), map.end());
}

void take_event(const std::string& event, std::int64_t step, const json& line, RunMetrics& run) {
  if (event == "validation") {
    run.validation[step] = number(line, "loss");
  } else if (event == "checkpoint") {
    ++run.checkpoints;
  } else if (event == "resume" || event == "start") {
    drop_after(run.steps, step);
    drop_after(run.validation, step);
    if (event == "resume" && step > 0) run.resumes.push_back(step);
  }
}

/// Null where it is not JSON.
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
  if (!line.is_object()) return false;
  for (const char* part : {"memory", "traffic", "traffic_between_nodes"})
    if (line.contains(part) && !line[part].is_object()) return false;
  const bool is_event = line.contains("event");
  if (is_event && !line["event"].is_string()) return false;
  const double step = number(line, "step");
  const bool has_step = step >= 0 && step < 1e15 && std::floor(step) == step;
  if (!has_step) return is_event;
  const auto index = static_cast<std::int64_t>(step);
  if (is_event)
    take_event(line["event"].get<std::string>(), index, line, run);
  else
    run.steps[index] = step_metrics(line);
  return true;
}

RunMetrics read_metrics(const std::filesystem::path& file) {
  std::error_code ignored;
  validate(std::filesystem::exists(file, ignored),
           "{} is not there; give the folder of a run that llamesh train has written",
           file.string());
  RunMetrics run;
  // An unterminated line is of a run that was killed, or is being written now.
  for_each_line(Descriptor::to_read(file), [&](std::string_view line, bool ended) {
    if (!line.empty() && !add_line(line, run) && ended) ++run.unreadable;
  });
  validate(!run.steps.empty(), "{} has no training step yet; train the run first", file.string());
  return run;
}

}  // namespace llamesh::app
