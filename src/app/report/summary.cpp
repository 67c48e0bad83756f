#include "app/report/summary.hpp"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

#include "app/report/chart.hpp"
#include "config/inputs.hpp"
#include "core/error.hpp"
#include "core/median.hpp"
#include "model/parameters.hpp"
#include "train/records/step_quantities.hpp"

namespace llamesh::app {
namespace {

using train::number;

std::string loss_text(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "–";
}

/// Facts from config.yaml; empty if this llamesh cannot read it.
struct Described {
  std::string model = {}, mesh = {}, strategy = {}, precision = {};
};

std::string describe_model(const model::ModelConfig& config) {
  return fmt::format("{} parameters · {} layers · hidden {} · heads {}/{} · vocabulary {}",
                     parameters_text(model::parameter_table(config).numel()),
                     config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
                     config.num_key_value_heads, config.vocab_size);
}

/// Describes the axes whose sizes the inputs give.
std::string describe_mesh(const comm::MeshOptions& mesh) {
  std::string text;
  for (const auto& [axis, size] : {std::pair("replicate", mesh.replicate),
                                   {"shard", mesh.shard},
                                   {"expert", mesh.expert},
                                   {"context", mesh.context},
                                   {"tensor", mesh.tensor}})
    if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " × ", axis, size);
  return text;
}

/// Turns "replicate=2 x shard=4" into "replicate 2 × shard 4".
std::string typeset(std::string mesh) {
  for (const auto& [from, to] : {std::pair(" x ", " × "), std::pair("=", " ")})
    for (auto at = mesh.find(from); at != mesh.npos; at = mesh.find(from, at + 2))
      mesh.replace(at, std::string_view(from).size(), to);
  return mesh;
}

/// Ranks and mesh at the last start, as far as known.
struct Shape {
  std::string ranks, mesh;
};
Shape shape_of(const ReportedRun& run, const Described& about) {
  if (run.metrics.starts.empty()) return {"", about.mesh};
  const auto& start = run.metrics.starts.back();
  return {std::isfinite(start.ranks) ? fmt::format("{:.0f}", start.ranks) : "",
          start.mesh.empty() ? about.mesh : typeset(start.mesh)};
}

Described describe(const std::string& config) {
  try {
    const auto in = config::parse_inputs(config, "config.yaml");
    return {describe_model(in.model), describe_mesh(in.mesh),
            std::string(sharding::name_of(in.sharding.strategy)),
            std::string(name_of(in.precision.parameters))};
  } catch (const Error&) {
    return {};
  }
}

std::string tile(const std::string& label, const std::string& value, const std::string& note = "") {
  return fmt::format("<div class=\"tile\"><span>{}</span><b>{}</b><small>{}</small></div>\n", label,
                     value, note);
}

double best_validation(const RunMetrics& run) {
  double best = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [step, loss] : run.validation) best = std::fmin(best, loss);
  return best;
}

std::string validation_tile(const RunMetrics& run) {
  if (run.validation.empty()) return tile("validation loss", "–", "not evaluated");
  const auto& [step, loss] = *run.validation.rbegin();
  const auto set = run.validation_set.empty() ? "" : escaped(run.validation_set) + ", ";
  return tile("validation loss", loss_text(loss),
              fmt::format("{}step {}<br>best {}{}", set, step, loss_text(best_validation(run)),
                          run.early_stop ? "<br>early stop" : ""));
}

/// Returns the mean training loss over the last `span` steps that have one.
double closing_loss(const RunMetrics& run, std::size_t span) {
  double sum = 0;
  std::size_t count = 0;
  for (auto it = run.steps.rbegin(); it != run.steps.rend() && count < span; ++it)
    if (std::isfinite(it->second.loss)) {
      sum += it->second.loss;
      ++count;
    }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

double seconds_in_steps(const RunMetrics& run) {
  double seconds = 0;
  for (const auto& [step, metrics] : run.steps)
    if (std::isfinite(metrics.seconds)) seconds += metrics.seconds;
  return seconds;
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", share * 100) : "–";
}

std::string date_text(double time) {
  if (!(time >= 0 && time < 1e11)) return "–";
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(time)));
}

/// Returns a row of cells with HTML content.
std::string row(const std::vector<std::string>& cells, const char* tag = "td") {
  std::string out = "<tr>";
  for (const std::string& cell : cells) out += fmt::format("<{0}>{1}</{0}>", tag, cell);
  return out + "</tr>\n";
}

std::string table(const std::string& rows) {
  return "<div class=\"table\"><table>" + rows + "</table></div>\n";
}

/// Returns a bar whose length is a share of the longest one.
std::string bar(double share) {
  return fmt::format("<i class=\"bar\" style=\"--share:{:.3f}\"></i>", share);
}

/// Lists the phases of the last start that recorded them, longest first.
std::string phases_table(const RunMetrics& run) {
  const auto told = std::find_if(run.starts.rbegin(), run.starts.rend(),
                                 [](const RunStart& start) { return !start.phases.empty(); });
  if (told == run.starts.rend()) return "";
  auto phases = told->phases;
  std::ranges::stable_sort(phases,
                           [](const auto& a, const auto& b) { return a.second > b.second; });
  const double longest = phases.front().second;
  std::string rows;
  for (const auto& [name, seconds] : phases)
    rows += row({escaped(name), duration_text(seconds),
                 bar(longest > 0 && seconds > 0 ? seconds / longest : 0.0)});
  return "<h2>Start-up, up to the end of the first step</h2>\n" + table(rows);
}

}  // namespace

/// Returns the median over finite values; NaN without any. Skips the first step, which also warms
/// up.
double median(const RunMetrics& run, const Field& field) {
  std::vector<double> values;
  for (const auto& [step, metrics] : run.steps)
    if (std::isfinite(field(metrics))) values.push_back(field(metrics));
  if (values.size() > 2) values.erase(values.begin());
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return llamesh::median(std::move(values));
}

double largest(const RunMetrics& run, const Field& field) {
  double most = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [step, metrics] : run.steps) most = std::fmax(most, field(metrics));
  return most;
}

std::size_t smoothing_span(std::size_t steps) {
  return std::clamp<std::size_t>(steps / 40, 1, 200);
}

std::string facts(const ReportedRun& run) {
  const Described about = describe(run.config);
  const Shape shape = shape_of(run, about);
  const auto ranks =
      shape.ranks.empty() ? "" : shape.ranks + (shape.ranks == "1" ? " rank" : " ranks");
  std::string text;
  for (const std::string& fact : {about.model, about.strategy, ranks, shape.mesh, about.precision})
    if (!fact.empty()) text += (text.empty() ? "" : " · ") + escaped(fact);
  return text;
}

std::string tiles(const RunMetrics& run) {
  const auto& [last_step, last] = *run.steps.rbegin();
  const std::size_t span = smoothing_span(run.steps.size());
  const double mfu = median(run, [](auto& m) { return number(m.mfu); });
  std::string out = "<div class=\"tiles\">\n";
  out += validation_tile(run);
  out += tile("training loss", loss_text(closing_loss(run, span)),
              span == 1 ? "last step" : fmt::format("mean of the last {}", span));
  out += tile("tokens", compact(number(last.tokens)), counted(last_step, "step"));
  out += tile("tokens/s", compact(median(run, [](auto& m) { return m.tokens_per_second; })),
              "median step");
  out += tile("MFU", percent(mfu), "median step");
  out += tile(
      "peak memory", bytes_text(largest(run, [](auto& m) { return number(m.peak); })),
      fmt::format("valley {}", bytes_text(largest(run, [](auto& m) { return number(m.valley); }))));
  out += tile("time in steps", duration_text(seconds_in_steps(run)),
              counted(std::ssize(run.resumes), "resume") + ", " +
                  counted(static_cast<std::int64_t>(run.checkpoints), "checkpoint"));
  double joules = 0;
  for (const auto& [step, metrics] : run.steps)
    if (metrics.joules) joules += *metrics.joules;
  if (joules > 0)
    out += tile("energy", fmt::format("{:.3g} kWh", joules / 3.6e6),
                fmt::format("median {:.3g} tokens/J",
                            median(run, [](auto& m) { return number(m.tokens_per_joule); })));
  return out + "</div>\n";
}

std::string summary_table(const std::vector<ReportedRun>& runs) {
  const auto or_dash = [](const std::string& text) { return text.empty() ? "–" : escaped(text); };
  std::string rows = row({"run", "ranks", "mesh", "step", "training loss", "best validation",
                          "tokens", "tokens/s", "MFU", "peak memory", "time in steps"},
                         "th");
  for (const auto& one : runs) {
    const auto& run = one.metrics;
    const auto& [step, last] = *run.steps.rbegin();
    const auto [ranks, mesh] = shape_of(one, describe(one.config));
    rows += row({escaped(one.name), or_dash(ranks), or_dash(mesh), fmt::format("{}", step),
                 loss_text(closing_loss(run, smoothing_span(run.steps.size()))),
                 loss_text(best_validation(run)), compact(number(last.tokens)),
                 compact(median(run, [](auto& m) { return m.tokens_per_second; })),
                 percent(median(run, [](auto& m) { return number(m.mfu); })),
                 bytes_text(largest(run, [](auto& m) { return number(m.peak); })),
                 duration_text(seconds_in_steps(run))});
  }
  return table(rows);
}

std::string traffic_table(const RunMetrics& run) {
  const train::StepRecord& last = run.steps.rbegin()->second;
  if (last.traffic.empty()) return "";
  std::string rows = row({"mesh axis", "sent per rank and step", "between nodes"}, "th");
  for (const auto& [axis, bytes] : last.traffic) {
    const auto between = last.traffic_between_nodes.find(axis);
    rows += row({escaped(axis), bytes_text(bytes),
                 between == last.traffic_between_nodes.end() ? "–" : bytes_text(between->second)});
  }
  return "<h2>Traffic</h2>\n" + table(rows);
}

std::string goodput_table(const ReportedRun& run) {
  if (!run.goodput) return "";
  std::string rows;
  for (const auto& [name, seconds] : run.goodput->parts()) {
    const double share = seconds / run.goodput->whole();
    rows += row({name, duration_text(seconds), fmt::format("{:.1f} %", 100 * share), bar(share)});
  }
  return "<h2>Goodput: where the time of all starts went</h2>\n" + table(rows);
}

std::string starts_table(const RunMetrics& run) {
  std::string rows = row({"after step", "time", "ranks", "rank 0 on", "llamesh"}, "th");
  bool told = false;
  for (const RunStart& start : run.starts) {
    told = told || !start.host.empty();
    rows += row({fmt::format("{}", start.step), date_text(start.time),
                 std::isfinite(start.ranks) ? fmt::format("{:.0f}", start.ranks) : "–",
                 escaped(start.host), escaped(start.version)});
  }
  return (told ? "<h2>Starts</h2>\n" + table(rows) : "") + phases_table(run);
}

}  // namespace llamesh::app
