#include "app/report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/median.hpp"
#include "train/records/step_quantities.hpp"

namespace llamesh::app {
namespace {

using train::number;

constexpr std::array colors{"--blue", "--orange", "--green", "--purple", "--red", "--teal"};
constexpr std::size_t clock_points = 400;

std::vector<Point> points_of(const RunMetrics& run, const Field& field) {
  std::vector<Point> points;
  for (const auto& [step, metrics] : run.steps)
    points.push_back({static_cast<double>(step), field(metrics)});
  return points;
}

/// Marks outliers: values whose distance from their stretch's median exceeds `far` times the median
/// distance.
std::vector<bool> outliers(const std::vector<Point>& points, std::size_t stretch) {
  constexpr double far = 8;
  std::vector<bool> out(points.size());
  for (std::size_t begin = 0; begin < points.size(); begin += stretch) {
    const std::size_t end = std::min(begin + stretch, points.size());
    std::vector<double> values;
    for (std::size_t i = begin; i < end; ++i) values.push_back(points[i].y);
    const double middle = llamesh::median(values);
    for (double& value : values) value = std::abs(value - middle);
    const double distance = llamesh::median(std::move(values));
    for (std::size_t i = begin; i < end; ++i)
      out[i] = std::abs(points[i].y - middle) > far * distance;
  }
  return out;
}

/// Smooths with a mean over about `span` points around each, fewer towards the ends so that it does
/// not lag; skips gaps. Outliers keep their values and count in no mean, so a spike is neither
/// flattened nor widened.
std::vector<Point> smoothed(const std::vector<Point>& points, std::size_t span) {
  std::vector<Point> out;
  for (const Point& p : points)
    if (std::isfinite(p.y)) out.push_back(p);
  if (span <= 1) return out;
  const auto is_outlier = outliers(out, 10 * span);
  std::vector<double> sums(out.size() + 1, 0.0), counts(out.size() + 1, 0.0);
  for (std::size_t i = 0; i < out.size(); ++i) {
    sums[i + 1] = sums[i] + (is_outlier[i] ? 0 : out[i].y);
    counts[i + 1] = counts[i] + (is_outlier[i] ? 0 : 1);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (is_outlier[i]) continue;
    const std::size_t reach = std::min({span / 2, i, out.size() - 1 - i});
    const std::size_t begin = i - reach, end = i + reach + 1;
    out[i].y = (sums[end] - sums[begin]) / (counts[end] - counts[begin]);
  }
  return out;
}

std::vector<Point> curve(const RunMetrics& run, const Field& field) {
  const std::vector<Point> raw = points_of(run, field);
  return smoothed(raw, smoothing_span(raw.size()));
}

Series line(const std::string& label, const std::string& color, std::vector<Point> points,
            Mark mark = Mark::line) {
  return {.label = label, .color = color, .mark = mark, .points = std::move(points)};
}

std::vector<Series> raw_and_smooth(const RunMetrics& run, const std::string& label,
                                   const std::string& color, const Field& field) {
  return {line(label + ", each step", color, points_of(run, field), Mark::faint_line),
          line(label + ", smoothed", color, curve(run, field))};
}

std::vector<Point> points_of(const std::map<std::int64_t, double>& losses) {
  std::vector<Point> points;
  for (const auto& [step, loss] : losses) points.push_back({static_cast<double>(step), loss});
  return points;
}

/// A unit in which values up to `most` bytes have few digits.
struct BytesUnit {
  double bytes;
  const char* name;
};
BytesUnit bytes_unit(double most) {
  if (most >= std::exp2(32)) return {std::exp2(30), "GiB"};
  if (most >= std::exp2(22)) return {std::exp2(20), "MiB"};
  return {std::exp2(10), "KiB"};
}

template <class T>
using ByAxis = std::map<std::string, T> train::StepRecord::*;

template <class T>
std::set<std::string> axes_of(const RunMetrics& run, ByAxis<T> what) {
  std::set<std::string> axes;
  for (const auto& [step, metrics] : run.steps)
    for (const auto& [axis, value] : metrics.*what) axes.insert(axis);
  return axes;
}

template <class T>
Field of_axis(ByAxis<T> what, const std::string& axis, double unit = 1) {
  return [=](const train::StepRecord& metrics) {
    const auto found = (metrics.*what).find(axis);
    return found == (metrics.*what).end() ? std::numeric_limits<double>::quiet_NaN()
                                          : static_cast<double>(found->second) / unit;
  };
}

/// Returns the steps at which the loss and gradient curves need an explanation.
std::vector<MarkedSteps> marks_of(const RunMetrics& run) {
  const auto in_chart = [](const auto& steps) {
    return std::vector<double>(steps.begin(), steps.end());
  };
  return {{"resumed from a checkpoint", "--soft", in_chart(run.resumes)},
          {"not finite: no update", "--red", in_chart(run.skipped)},
          {"spike", "--orange", in_chart(run.spikes)}};
}

/// Makes the scale logarithmic if a linear one would leave most of the chart empty: one value far
/// above the median, or many far below it.
Chart scaled(Chart chart) {
  constexpr double far = 8;
  std::vector<double> values;
  for (const Series& series : chart.series)
    for (const Point& p : series.points)
      if (std::isfinite(p.y) && p.y > 0) values.push_back(p.y);
  if (values.empty()) return chart;
  std::ranges::sort(values);
  const double low = values[values.size() / 20], middle = values[values.size() / 2];
  if (values.back() <= far * middle && middle <= far * low) return chart;
  chart.scale = YScale::logarithmic;
  chart.unit += ", logarithmic";
  return chart;
}

Chart loss_chart(const RunMetrics& run) {
  Chart chart{.title = "Loss", .unit = "nats per token", .wide = true};
  chart.series = raw_and_smooth(run, "training", "--blue", [](auto& m) { return m.loss; });
  const auto label = [](const std::string& set) {
    return set.empty() ? "validation" : "validation: " + set;
  };
  chart.series.push_back(
      line(label(run.validation_set), "--orange", points_of(run.validation), Mark::dots));
  for (std::size_t i = 0; const auto& [set, losses] : run.other_validation)
    chart.series.push_back(
        line(label(set), colors[(2 + i++) % colors.size()], points_of(losses), Mark::dots));
  chart.marks = marks_of(run);
  return scaled(std::move(chart));
}

Chart memory_chart(const RunMetrics& run) {
  const auto unit = bytes_unit(largest(run, [](auto& m) { return number(m.peak); }));
  return {.title = "Memory",
          .unit = fmt::format("{} on the fullest rank", unit.name),
          .scale = YScale::from_zero,
          .series = {line("peak within a step", "--red",
                          points_of(run, [=](auto& m) { return number(m.peak) / unit.bytes; })),
                     line("valley between steps", "--green",
                          points_of(run, [=](auto& m) { return number(m.valley) / unit.bytes; }))}};
}

Chart norm_chart(const RunMetrics& run) {
  Chart chart{.title = "Gradient norm", .unit = "before clipping", .scale = YScale::from_zero};
  chart.series = raw_and_smooth(run, "norm", "--purple", [](auto& m) { return m.grad_norm; });
  chart.marks = marks_of(run);
  return scaled(std::move(chart));
}

/// Draws the rate in units of a power of ten, so that the axis has short labels.
Chart rate_chart(const RunMetrics& run) {
  const double most = largest(run, [](auto& m) { return m.lr; });
  const double power = most > 0 ? std::pow(10.0, std::floor(std::log10(most))) : 1.0;
  return {.title = "Learning rate",
          .unit = power == 1 ? "" : fmt::format("in units of 1e{:.0f}", std::log10(power)),
          .scale = YScale::from_zero,
          .series = {line("learning rate", "--teal",
                          points_of(run, [=](auto& m) { return m.lr / power; }))}};
}

Chart mfu_chart(const RunMetrics& run) {
  return {.title = "MFU",
          .unit = "%",
          .scale = YScale::from_zero,
          .series =
              raw_and_smooth(run, "MFU", "--orange", [](auto& m) { return 100 * number(m.mfu); })};
}

Chart traffic_chart(const RunMetrics& run) {
  double most = 0;
  for (const auto& axis : axes_of(run, &train::StepRecord::traffic))
    most = std::fmax(most, largest(run, of_axis(&train::StepRecord::traffic, axis)));
  const auto unit = bytes_unit(most);
  Chart chart{.title = "Traffic",
              .unit = fmt::format("{} sent per rank and step", unit.name),
              .scale = YScale::from_zero};
  for (const auto& axis : axes_of(run, &train::StepRecord::traffic))
    chart.series.push_back(
        line(axis, colors[chart.series.size() % colors.size()],
             points_of(run, of_axis(&train::StepRecord::traffic, axis, unit.bytes))));
  return chart;
}

/// Draws the breakdown of step time.
Chart time_chart(const RunMetrics& run) {
  Chart chart{.title = "Step time",
              .unit = "seconds, mean over ranks, smoothed",
              .scale = YScale::from_zero,
              .wide = true};
  chart.series.push_back(
      line("computing", "--blue", curve(run, [](auto& m) { return m.seconds_compute; })));
  for (const auto& axis : axes_of(run, &train::StepRecord::exposed))
    chart.series.push_back(line("waiting for " + axis, colors[chart.series.size() % colors.size()],
                                curve(run, of_axis(&train::StepRecord::exposed, axis))));
  if (chart.series.size() > 1) return chart;
  return {.title = "Step time",
          .unit = "seconds, slowest rank",
          .scale = YScale::from_zero,
          .series = raw_and_smooth(run, "step", "--blue", [](auto& m) { return m.seconds; }),
          .wide = true};
}

/// Draws one smoothed curve per run.
Chart comparing(Chart chart, const std::vector<ReportedRun>& runs, const Field& field) {
  for (std::size_t i = 0; i < runs.size(); ++i)
    chart.series.push_back({.label = runs[i].name,
                            .color = colors[i % colors.size()],
                            .points = curve(runs[i].metrics, field),
                            .run = i,
                            .dashed = i >= colors.size()});
  return chart;
}

/// Returns a field of the experts' balance.
template <class Of>
Field of_experts(Of of) {
  return [=](const train::StepRecord& step) {
    return step.experts ? number(of(*step.experts)) : number(std::optional<double>());
  };
}

/// Draws how evenly tokens were spread over experts.
Chart expert_load_chart(const RunMetrics& run) {
  const auto curve_of = [&](const char* label, const char* color, auto name) {
    return line(label, color, curve(run, of_experts([=](auto& e) { return e.all.*name; })));
  };
  using Loads = train::ExpertLoads;
  return {.title = "Expert load",
          .unit = "tokens relative to an equal share, smoothed",
          .scale = YScale::from_zero,
          .series = {curve_of("busiest expert of all layers", "--red", &Loads::max_load),
                     curve_of("idlest", "--green", &Loads::min_load),
                     curve_of("entropy of a layer, 1: even", "--blue", &Loads::entropy)}};
}

Chart router_loss_chart(const RunMetrics& run) {
  Chart chart{.title = "Router losses", .unit = "without coefficients, smoothed"};
  const auto z_loss = of_experts([](auto& e) { return e.z_loss; });
  chart.series = {line("load balancing", "--purple",
                       curve(run, of_experts([](auto& e) { return e.all.aux_loss; })))};
  if (std::isfinite(largest(run, z_loss)))
    chart.series.push_back(line("z", "--orange", curve(run, z_loss)));
  return scaled(std::move(chart));
}

Chart comparing_validation(const std::vector<ReportedRun>& runs) {
  Chart chart{.title = "Validation loss", .unit = "nats per token", .wide = true};
  for (std::size_t i = 0; i < runs.size(); ++i)
    chart.series.push_back({.label = runs[i].name,
                            .color = colors[i % colors.size()],
                            .mark = Mark::dots,
                            .points = points_of(runs[i].metrics.validation),
                            .run = i});
  return scaled(std::move(chart));
}

Clock clock_of(const RunMetrics& run, double unit) {
  Clock clock;
  const std::size_t stride = run.steps.size() / clock_points + 1;
  std::size_t i = 0;
  for (const auto& [step, metrics] : run.steps)
    if (i++ % stride == 0 || i == run.steps.size()) {
      clock.steps.push_back(static_cast<double>(step));
      clock.times.push_back(metrics.elapsed / unit);
    }
  return clock;
}

}  // namespace

Clocks clocks_of(const std::vector<ReportedRun>& runs) {
  double longest = 0;
  for (const auto& run : runs)
    longest = std::max(longest, run.metrics.steps.rbegin()->second.elapsed);
  const auto [unit, name] = longest < 300         ? std::pair(1, "seconds")
                            : longest < 3 * 3600  ? std::pair(60, "minutes")
                            : longest < 72 * 3600 ? std::pair(3600, "hours")
                                                  : std::pair(86400, "days");
  Clocks clocks{.unit = name, .of_runs = {}};
  for (const auto& run : runs) clocks.of_runs.push_back(clock_of(run.metrics, unit));
  return clocks;
}

std::vector<Chart> charts_of(const RunMetrics& run) {
  const Chart throughput{.title = "Throughput",
                         .unit = "tokens/s over all ranks",
                         .scale = YScale::from_zero,
                         .series = raw_and_smooth(run, "tokens/s", "--blue",
                                                  [](auto& m) { return m.tokens_per_second; })};
  std::vector<Chart> charts{loss_chart(run), throughput,        mfu_chart(run),
                            time_chart(run), memory_chart(run), traffic_chart(run),
                            norm_chart(run), rate_chart(run)};
  const auto of_joule = [](auto& m) { return number(m.tokens_per_joule); };
  if (largest(run, of_joule) > 0)
    charts.push_back({.title = "Energy",
                      .unit = "tokens per joule",
                      .scale = YScale::from_zero,
                      .series = raw_and_smooth(run, "tokens/J", "--blue", of_joule)});
  if (std::ranges::none_of(run.steps, [](auto& step) { return step.second.experts.has_value(); }))
    return charts;
  charts.push_back(expert_load_chart(run));
  charts.push_back(router_loss_chart(run));
  return charts;
}

std::vector<Chart> comparing_charts(const std::vector<ReportedRun>& runs) {
  using enum YScale;
  double most = 0;
  for (const auto& run : runs)
    most = std::fmax(most, largest(run.metrics, [](auto& m) { return number(m.peak); }));
  const auto unit = bytes_unit(most);
  const auto each = [&](const char* title, const std::string& unit_of_y, YScale scale,
                        const Field& field) {
    return comparing({.title = title, .unit = unit_of_y, .scale = scale}, runs, field);
  };
  auto loss =
      each("Training loss", "nats per token, smoothed", fitted, [](auto& m) { return m.loss; });
  loss.wide = true;
  return {scaled(std::move(loss)),
          comparing_validation(runs),
          each("Throughput", "tokens/s over all ranks", from_zero,
               [](auto& m) { return m.tokens_per_second; }),
          each("MFU", "%", from_zero, [](auto& m) { return 100 * number(m.mfu); }),
          each("Peak memory", fmt::format("{} on the fullest rank", unit.name), from_zero,
               [=](auto& m) { return number(m.peak) / unit.bytes; }),
          each("Step time", "seconds, slowest rank", from_zero, [](auto& m) { return m.seconds; }),
          scaled(each("Gradient norm", "before clipping", from_zero,
                      [](auto& m) { return m.grad_norm; })),
          each("Learning rate", "", from_zero, [](auto& m) { return m.lr; })};
}

}  // namespace llamesh::app
