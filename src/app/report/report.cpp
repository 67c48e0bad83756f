#include "app/report/report.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "app/report/chart.hpp"
#include "app/report/report_style.hpp"
#include "app/report/run_metrics.hpp"
#include "core/file.hpp"
#include "model/llama_config.hpp"
#include "model/parameters.hpp"

namespace llamesh::app {
namespace {

using Field = std::function<double(const StepMetrics&)>;

std::vector<Point> points_of(const RunMetrics& run, const Field& field) {
  std::vector<Point> points;
  for (const auto& [step, metrics] : run.steps)
    points.push_back({static_cast<double>(step), field(metrics)});
  return points;
}

/// Mean over about `span` points around each, fewer towards the ends so that it does not lag; gaps
/// are skipped.
std::vector<Point> smoothed(const std::vector<Point>& points, std::size_t span) {
  std::vector<Point> out;
  for (const Point& p : points)
    if (std::isfinite(p.y)) out.push_back(p);
  std::vector<double> sums(out.size() + 1, 0.0);
  for (std::size_t i = 0; i < out.size(); ++i) sums[i + 1] = sums[i] + out[i].y;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t reach = std::min({span / 2, i, out.size() - 1 - i});
    out[i].y = (sums[i + reach + 1] - sums[i - reach]) / static_cast<double>(2 * reach + 1);
  }
  return out;
}

std::size_t smoothing_span(std::size_t steps) {
  return std::clamp<std::size_t>(steps / 40, 1, 200);
}

/// Of the finite values; NaN without any. Later steps only: the first one also warms up.
double median(const RunMetrics& run, const Field& field) {
  std::vector<double> values;
  for (const auto& [step, metrics] : run.steps)
    if (std::isfinite(field(metrics))) values.push_back(field(metrics));
  if (values.size() > 2) values.erase(values.begin());
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double largest(const RunMetrics& run, const Field& field) {
  double most = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [step, metrics] : run.steps) most = std::fmax(most, field(metrics));
  return most;
}

std::string bytes_text(double bytes) {
  if (!std::isfinite(bytes)) return "–";
  if (bytes >= std::exp2(30)) return fmt::format("{:.2f} GiB", bytes / std::exp2(30));
  if (bytes >= std::exp2(20)) return fmt::format("{:.1f} MiB", bytes / std::exp2(20));
  return fmt::format("{:.1f} KiB", bytes / std::exp2(10));
}

std::string duration_text(double seconds) {
  if (!(seconds < 1e12)) return "–";
  const auto whole = static_cast<std::int64_t>(std::round(seconds));
  if (whole < 60) return fmt::format("{:.1f} s", seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string counted(std::size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string loss_text(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "–";
}

/// What config.yaml says, as far as it can be read.
struct Described {
  std::string name = {}, model = {}, mesh = {}, strategy = {}, precision = {}, text = {};
};

std::string scalar(const YAML::Node& node) {
  return node.IsScalar() ? node.Scalar() : "";
}

std::string describe_model(const YAML::Node& model) {
  model::LlamaConfig config;
  const auto take = [&](const char* key, std::int64_t& value) {
    if (model[key]) value = model[key].as<std::int64_t>();
  };
  take("hidden_size", config.hidden_size);
  take("intermediate_size", config.intermediate_size);
  take("num_hidden_layers", config.num_hidden_layers);
  take("num_attention_heads", config.num_attention_heads);
  take("num_key_value_heads", config.num_key_value_heads);
  take("head_dim", config.head_dim);
  take("vocab_size", config.vocab_size);
  if (model["tie_word_embeddings"])
    config.tie_word_embeddings = model["tie_word_embeddings"].as<bool>();
  config = config.resolved();
  return fmt::format("{}parameters · {} layers · hidden {} · heads {}/{} · vocabulary {}",
                     compact(static_cast<double>(model::parameter_table(config).numel())) + " ",
                     config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
                     config.num_key_value_heads, config.vocab_size);
}

std::string describe_mesh(const YAML::Node& mesh) {
  std::string text;
  for (const auto& axis : mesh["axes"])
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : " × ", scalar(axis.first), scalar(axis.second));
  return text;
}

Described describe(const std::string& name, const std::string& text) {
  Described about{.name = name, .text = text};
  const auto attempt = [](std::string& into, const std::function<std::string()>& get) {
    try {
      into = get();
    } catch (const std::exception&) {
      into.clear();  // left out of the page
    }
  };
  YAML::Node config;
  try {
    config = YAML::Load(about.text);
  } catch (const YAML::Exception&) {
    return about;
  }
  if (!config.IsMap()) return about;
  const YAML::Node& fixed = config;  // operator[] of a const Node adds nothing
  attempt(about.model, [&] { return fixed["model"] ? describe_model(fixed["model"]) : ""; });
  attempt(about.mesh, [&] { return describe_mesh(fixed["mesh"]); });
  attempt(about.strategy, [&] { return scalar(fixed["sharding"]["strategy"]); });
  attempt(about.precision, [&] { return scalar(fixed["precision"]["parameters"]); });
  return about;
}

std::string tile(const std::string& label, const std::string& value, const std::string& note = "") {
  return fmt::format("<div class=\"tile\"><span>{}</span><b>{}</b><small>{}</small></div>\n", label,
                     value, note);
}

std::string validation_tile(const RunMetrics& run) {
  if (run.validation.empty()) return tile("validation loss", "–", "not evaluated");
  const auto& [step, loss] = *run.validation.rbegin();
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [at, value] : run.validation) best = std::fmin(best, value);
  return tile("validation loss", loss_text(loss),
              fmt::format("step {}<br>best {}", step, loss_text(best)));
}

/// Mean training loss of the last `span` steps that have one.
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

std::string tiles(const RunMetrics& run) {
  const auto& [last_step, last] = *run.steps.rbegin();
  const std::size_t span = smoothing_span(run.steps.size());
  double seconds = 0;
  for (const auto& [step, metrics] : run.steps)
    if (std::isfinite(metrics.seconds)) seconds += metrics.seconds;
  const double mfu = median(run, [](auto& m) { return m.mfu; });
  std::string out = "<div class=\"tiles\">\n";
  out += validation_tile(run);
  out += tile("training loss", loss_text(closing_loss(run, span)),
              span == 1 ? "last step" : fmt::format("mean of the last {}", span));
  out += tile("tokens", compact(last.tokens),
              fmt::format("{} step{}", last_step, last_step == 1 ? "" : "s"));
  out += tile("tokens/s", compact(median(run, [](auto& m) { return m.tokens_per_second; })),
              "median step");
  out += tile("MFU", std::isfinite(mfu) ? fmt::format("{:.1f} %", mfu * 100) : "–", "median step");
  out += tile("peak memory", bytes_text(largest(run, [](auto& m) { return m.peak; })),
              fmt::format("valley {}", bytes_text(largest(run, [](auto& m) { return m.valley; }))));
  out +=
      tile("time in steps", duration_text(seconds),
           counted(run.resumes.size(), "resume") + ", " + counted(run.checkpoints, "checkpoint"));
  return out + "</div>\n";
}

Series line(const std::string& label, const std::string& colour, std::vector<Point> points,
            Mark mark = Mark::line) {
  return {.label = label, .colour = colour, .mark = mark, .points = std::move(points)};
}

std::vector<Series> raw_and_smooth(const RunMetrics& run, const std::string& label,
                                   const std::string& colour, const Field& field) {
  const std::vector<Point> raw = points_of(run, field);
  return {line(label + ", each step", colour, raw, Mark::faint_line),
          line(label + ", smoothed", colour, smoothed(raw, smoothing_span(raw.size())))};
}

Chart loss_chart(const RunMetrics& run) {
  Chart chart{.title = "Loss", .unit = "nats a token", .wide = true};
  chart.series = raw_and_smooth(run, "training", "--blue", [](auto& m) { return m.loss; });
  std::vector<Point> validation;
  for (const auto& [step, loss] : run.validation)
    validation.push_back({static_cast<double>(step), loss});
  chart.series.push_back(line("validation", "--orange", validation, Mark::dots));
  for (const std::int64_t step : run.resumes) chart.marks.push_back(static_cast<double>(step));
  chart.mark_label = "resumed from a checkpoint";
  return chart;
}

Chart memory_chart(const RunMetrics& run) {
  const double most = largest(run, [](auto& m) { return m.peak; });
  const auto [unit, name] = most >= std::exp2(32)   ? std::pair(std::exp2(30), "GiB")
                            : most >= std::exp2(22) ? std::pair(std::exp2(20), "MiB")
                                                    : std::pair(std::exp2(10), "KiB");
  return {.title = "Memory",
          .unit = fmt::format("{} on the fullest rank", name),
          .scale = YScale::from_zero,
          .series = {line("peak within a step", "--red",
                          points_of(run, [unit = unit](auto& m) { return m.peak / unit; })),
                     line("valley between steps", "--green",
                          points_of(run, [unit = unit](auto& m) { return m.valley / unit; }))}};
}

/// A gradient norm that spans decades is unreadable on a linear axis.
Chart norm_chart(const RunMetrics& run) {
  Chart chart{.title = "Gradient norm", .unit = "before clipping"};
  chart.series = raw_and_smooth(run, "norm", "--purple", [](auto& m) { return m.grad_norm; });
  const double most = largest(run, [](auto& m) { return m.grad_norm; });
  const double middle = median(run, [](auto& m) { return m.grad_norm; });
  chart.scale = middle > 0 && most > 8 * middle ? YScale::logarithmic : YScale::from_zero;
  return chart;
}

/// The rate in units of a power of ten, so that the axis has short labels.
Chart rate_chart(const RunMetrics& run) {
  const double most = largest(run, [](auto& m) { return m.lr; });
  const double power = most > 0 ? std::pow(10.0, std::floor(std::log10(most))) : 1.0;
  return {.title = "Learning rate",
          .unit = power == 1 ? "" : fmt::format("in units of 1e{:.0f}", std::log10(power)),
          .scale = YScale::from_zero,
          .series = {line("learning rate", "--teal",
                          points_of(run, [=](auto& m) { return m.lr / power; }))}};
}

std::string charts(const RunMetrics& run) {
  const Chart throughput{.title = "Throughput",
                         .unit = "tokens/s over all ranks",
                         .scale = YScale::from_zero,
                         .series = raw_and_smooth(run, "tokens/s", "--blue",
                                                  [](auto& m) { return m.tokens_per_second; })};
  std::string out = "<div class=\"charts\">\n";
  for (const Chart& chart :
       {loss_chart(run), throughput, memory_chart(run), norm_chart(run), rate_chart(run)})
    out += draw(chart);
  return out + "</div>\n";
}

std::string traffic_table(const RunMetrics& run) {
  const StepMetrics& last = run.steps.rbegin()->second;
  if (last.traffic.empty()) return "";
  std::string out =
      "<h2>Traffic</h2>\n<table><tr><th>mesh axis</th><th>sent by a rank in a step</th>"
      "<th>between nodes</th></tr>\n";
  for (const auto& [axis, bytes] : last.traffic) {
    const auto between = last.traffic_between_nodes.find(axis);
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escaped(axis), bytes_text(bytes),
        between == last.traffic_between_nodes.end() ? "–" : bytes_text(between->second));
  }
  return out + "</table>\n";
}

std::string page(const Described& about, const RunMetrics& run) {
  std::string facts;
  for (const std::string& fact : {about.model, about.strategy, about.mesh, about.precision})
    if (!fact.empty()) facts += (facts.empty() ? "" : " · ") + escaped(fact);
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>{0} – llamesh</title>\n"
      "<style>{1}</style></head><body><main>\n<h1>{0}</h1>\n<p class=\"facts\">{2}</p>\n",
      escaped(about.name), report_style, facts);
  out += tiles(run) + charts(run) + traffic_table(run);
  if (run.unreadable > 0)
    out += fmt::format("<p class=\"note\">{} of metrics.jsonl skipped: no valid record.</p>\n",
                       counted(run.unreadable, "line"));
  if (!about.text.empty())
    out +=
        "<details><summary>config.yaml</summary><pre>" + escaped(about.text) + "</pre></details>\n";
  return out + "</main></body></html>\n";
}

}  // namespace

std::string report_page(const RunMetrics& run, const std::string& name, const std::string& config) {
  return page(describe(name, config), run);
}

void write_report(const std::filesystem::path& run_folder) {
  const std::filesystem::path folder =
      std::filesystem::weakly_canonical(run_folder / "metrics.jsonl").parent_path();
  const RunMetrics run = read_metrics(run_folder / "metrics.jsonl");
  std::error_code ignored;
  const auto config = folder / "config.yaml";
  const auto text = std::filesystem::exists(config, ignored) ? read_file(config, 16 << 20) : "";
  const std::string html = report_page(run, folder.filename().string(), text);
  const std::filesystem::path file = folder / "report.html";
  write_durably(file, html);
}

}  // namespace llamesh::app
