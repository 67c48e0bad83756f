#include "train/openmetrics/openmetrics_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "core/clock.hpp"
#include "core/file.hpp"
#include "core/process.hpp"
#include "train/records/step_quantities.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::train {
namespace {

/// Returns a label's value with the escapes of the format.
std::string escaped_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// Text under construction. Metrics of one family follow each other, below their HELP and TYPE.
class Exposition {
 public:
  explicit Exposition(const std::string& run) : run_(escaped_label(run)) {}

  /// Begins a family of gauges.
  void begin(std::string_view name, std::string_view help) { begin(name, "gauge", help, ""); }
  /// Begins a family of counters, whose samples are called NAME_total.
  void begin_counter(std::string_view name, std::string_view help) {
    begin(name, "counter", help, "_total");
  }
  /// Adds a value, with one more label if `label` is not empty.
  void add(double value, std::string_view label = {}, std::string_view label_value = {}) {
    text_ += fmt::format("{}{{run=\"{}\"", name_, run_);
    if (!label.empty()) text_ += fmt::format(",{}=\"{}\"", label, escaped_label(label_value));
    text_ += fmt::format("}} {}\n", number_text(value));
  }
  void gauge(std::string_view name, std::string_view help, double value) {
    begin(name, help);
    add(value);
  }
  void add(const Gauge& gauge, std::string_view help, double value) {
    const auto name = fmt::format("llamesh_{}", gauge.name);
    gauge.type == Gauge::Type::counter ? begin_counter(name, help) : begin(name, help);
    add(value);
  }
  std::string text() && { return std::move(text_) + "# EOF\n"; }

 private:
  void begin(std::string_view name, std::string_view type, std::string_view help,
             std::string_view suffix) {
    name_ = fmt::format("{}{}", name, suffix);
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }

  std::string run_;
  std::string name_;
  std::string text_;
};

void add_run(Exposition& out, const RunGauges& run) {
  out.begin("llamesh_build_info", "The program's version, as a label.");
  out.add(1, "version", version());
  out.gauge("llamesh_running", "1 while the run trains, 0 once it has ended.", run.running ? 1 : 0);
  out.gauge("llamesh_step", "Steps done.", static_cast<double>(run.step));
  out.gauge("llamesh_steps", "Steps that the run will have.", static_cast<double>(run.steps));
  out.gauge("llamesh_checkpoint_step", "Step of the newest checkpoint.",
            static_cast<double>(run.checkpoint_step));
  if (run.checkpoint_time)
    out.gauge("llamesh_checkpoint_timestamp_seconds",
              "Unix time at which this launch saved its newest checkpoint.", *run.checkpoint_time);
  if (run.memory_step > 0)
    out.gauge("llamesh_memory_checkpoint_step", "Step of this launch's newest memory checkpoint.",
              static_cast<double>(run.memory_step));
  if (!run.validation_losses.empty())
    out.begin("llamesh_validation_loss", "Validation loss, nats per token.");
  for (const auto& [set, loss] : run.validation_losses)
    out.add(loss, set == default_validation_set ? "" : "set", set);
  if (run.joules) {
    out.begin_counter("llamesh_energy_joules", "Energy that all launches have used.");
    out.add(*run.joules);
  }
  if (const auto share = run.goodput.share()) {
    out.begin("llamesh_time_seconds", "Where the time of all launches went.");
    for (const auto& [part, seconds] : run.goodput.parts()) out.add(seconds, "part", part);
    out.gauge("llamesh_goodput_ratio", "Share of it in steps that count, 0 to 1.", *share);
  }
  out.gauge("llamesh_update_timestamp_seconds", "Unix time at which this file was written.",
            std::round(unix_time() * 1e3) / 1e3);
}

constexpr int num_gauges = [] {
  int count = 0;
  for_each_quantity([&](const auto& quantity) { count += quantity.gauge.name == nullptr ? 0 : 1; });
  return count;
}();

void add_step(Exposition& out, const StepRecord& record) {
  for (int place = 1; place <= num_gauges; ++place)
    for_each_quantity([&](const auto& quantity) {
      if constexpr (requires { known(record.*quantity.member); })
        if (const auto value = known(record.*quantity.member);
            value && quantity.gauge.place == place)
          out.add(quantity.gauge, quantity.help, *value);
    });
  if (record.exposed.empty() || record.seconds <= 0) return;
  out.begin("llamesh_exposed_ratio",
            "Share of the step in which ranks waited for communication along an axis, 0 to 1.");
  for (const auto& [axis, seconds] : record.exposed)
    out.add(seconds / record.seconds, "axis", axis);
}

}  // namespace

std::string to_openmetrics(const RunGauges& run, const StepRecord* record) {
  Exposition out(run.run);
  add_run(out, run);
  if (record != nullptr) add_step(out, *record);
  return std::move(out).text();
}

OpenMetricsFile::OpenMetricsFile(std::filesystem::path path, const RunGauges& run)
    : path_(std::move(path)) {
  write(run, nullptr);
}

void OpenMetricsFile::write(const RunGauges& run, const StepRecord* record) {
  auto temporary = path_;
  temporary += fmt::format(".{}.tmp", ::getpid());  // the collector reads *.prom only
  ::unlink(temporary.c_str());                      // left over from a killed process
  try {
    auto file = Descriptor::to_write(temporary, O_WRONLY | O_CREAT | O_EXCL);
    ::fchmod(file.get(), 0644);
    file.append(to_openmetrics(run, record));
    rename_path(temporary, path_);  // no fsync: after a power loss nobody needs the file
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace llamesh::train
