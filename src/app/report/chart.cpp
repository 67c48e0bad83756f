#include "app/report/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace llamesh::app {
namespace {

constexpr double left = 58, right = 14, top = 10, bottom = 38;  // margins around the plot
constexpr std::size_t max_points = 800;  // per line; more would be below pixel resolution

struct AxisRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

/// Returns true if the scale can show the point; other values are gaps: nonpositive ones on a
/// logarithmic scale, and those so large that differences would overflow.
bool showable(const Point& p, YScale scale) {
  return std::isfinite(p.y) && std::abs(p.y) < 1e200 &&
         (scale != YScale::logarithmic || p.y > 1e-200);
}

/// Range of the showable points over all series.
struct Extent {
  AxisRange x, y;
  explicit Extent(const Chart& chart) {
    for (const Series& series : chart.series)
      for (const Point& p : series.points)
        if (showable(p, chart.scale)) {
          x.add(p.x);
          y.add(p.y);
        }
  }
};

/// Pads the range, and never returns an empty one.
AxisRange padded(AxisRange range, YScale scale) {
  if (scale == YScale::logarithmic) {
    const double factor = std::max(1.1, std::pow(range.high / range.low, 0.06));
    return {range.low / factor, range.high * factor};
  }
  if (scale == YScale::from_zero) range.low = std::min(range.low, 0.0);
  double room = (range.high - range.low) * 0.06;
  if (room == 0) room = range.high == 0 ? 1 : std::abs(range.high) * 0.1;
  return {range.low == 0 && scale == YScale::from_zero ? 0 : range.low - room, range.high + room};
}

std::vector<double> log_ticks(double low, double high) {
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  std::vector<double> ticks;
  for (int decade = first; decade <= last; ++decade)
    for (const double leading : {1.0, 2.0, 5.0}) {
      if (last - first > 3 && leading != 1.0) continue;
      const double tick = leading * std::pow(10.0, decade);
      if (tick >= low && tick <= high) ticks.push_back(tick);
    }
  return ticks;
}

/// Formats an axis' labels with a common power of a thousand (or ten, if small) and common
/// decimals.
std::vector<std::string> labels(const std::vector<double>& ticks, YScale scale) {
  std::vector<std::string> texts;
  double largest = 0;
  for (const double tick : ticks) largest = std::max(largest, std::abs(tick));
  double factor = 1;
  const char* suffix = "";
  if (largest >= 1e10)
    factor = 1e9, suffix = "G";
  else if (largest >= 1e7)
    factor = 1e6, suffix = "M";
  else if (largest >= 1e4)
    factor = 1e3, suffix = "k";
  const bool linear = scale != YScale::logarithmic && ticks.size() > 1;
  const double step = linear ? (ticks[1] - ticks[0]) / factor : 1;
  const bool even = linear && step > 1e-5;  // smaller ones need an exponent
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  for (const double tick : ticks) {
    std::string text =
        even ? fmt::format("{:.{}f}", tick / factor, decimals) : fmt::format("{:g}", tick / factor);
    if (tick != 0) text += suffix;
    texts.push_back(std::move(text));
  }
  return texts;
}

/// Keeps the lowest and highest point in each of many equal stretches, so that spikes stay visible.
std::vector<Point> thinned(const std::vector<Point>& points) {
  if (points.size() <= max_points) return points;
  std::vector<Point> kept;
  const std::size_t stretches = max_points / 2;
  for (std::size_t i = 0; i < stretches; ++i) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(points.size() * i / stretches);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>(points.size() * (i + 1) / stretches);
    auto [low, high] =
        std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.y < b.y; });
    if (low->x > high->x) std::swap(low, high);
    kept.push_back(*low);
    if (low != high) kept.push_back(*high);
  }
  return kept;
}

class Plot {
 public:
  Plot(const Chart& chart, const Clocks& clocks)
      : chart_(chart),
        clocks_(clocks),
        width_(chart.wide ? 1080 : 530),
        height_(chart.wide ? 340 : 260) {
    const Extent extent(chart);
    x_ = extent.x;
    if (x_.low == x_.high) x_ = {x_.low - 1, x_.high + 1};
    y_ = padded(extent.y, chart.scale);
    for (const Series& series : chart.series)
      for (const Point& p : series.points)
        if (showable(p, chart.scale)) time_.add(clocks.of_runs.at(series.run).time_of(p.x));
    if (time_.low == time_.high) time_.high += 1;
  }

  std::string svg() const {
    std::string out = fmt::format(
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" data-plot=\"{} {} {} {}\" "
        "data-time=\"{} {}\">\n",
        width_, height_, escaped(chart_.title), left, width_ - right, top, height_ - bottom,
        time_.low, time_.high);
    out += y_axis();
    out += x_axis("by-step", "step", x_);
    out += x_axis("by-time", clocks_.unit, time_);
    for (const auto& [label, color, steps] : chart_.marks)
      for (const double at : steps)
        if (at >= x_.low && at <= x_.high)
          out += fmt::format(
              "<line class=\"mark\" style=\"--c:var({0})\" data-x=\"{1}\" x1=\"{2:.1f}\" "
              "x2=\"{2:.1f}\" "
              "y1=\"{3}\" y2=\"{4}\"/>\n",
              color, at, x(at), top, height_ - bottom);
    for (const Series& series : chart_.series) out += drawn(series);
    return out + "</svg>\n";
  }

 private:
  double x(double value) const {
    return left + (value - x_.low) / (x_.high - x_.low) * (width_ - left - right);
  }
  double y(double value) const {
    const bool log = chart_.scale == YScale::logarithmic;
    const double share = log ? std::log(value / y_.low) / std::log(y_.high / y_.low)
                             : (value - y_.low) / (y_.high - y_.low);
    return height_ - bottom - share * (height_ - top - bottom);
  }
  std::string y_axis() const {
    const int wanted = chart_.wide ? 6 : 5;
    std::vector<double> ticks = chart_.scale == YScale::logarithmic
                                    ? log_ticks(y_.low, y_.high)
                                    : nice_ticks(y_.low, y_.high, wanted);
    YScale scale = chart_.scale;
    if (ticks.size() < 2) {
      ticks = nice_ticks(y_.low, y_.high, wanted);
      scale = YScale::fitted;
    }
    const std::vector<std::string> texts = labels(ticks, scale);
    std::string out;
    for (std::size_t i = 0; i < ticks.size(); ++i)
      out += fmt::format(
          "<path class=\"grid\" d=\"M{0} {1:.1f}H{2}\"/>"
          "<text class=\"tick\" x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
          left, y(ticks[i]), width_ - right, left - 8, y(ticks[i]) + 4, texts[i]);
    return out;
  }

  std::string x_axis(const char* kind, const std::string& name, const AxisRange& range) const {
    std::vector<double> ticks = nice_ticks(range.low, range.high, chart_.wide ? 10 : 5);
    if (&range == &x_)  // steps are whole
      std::erase_if(ticks, [](double tick) { return tick != std::floor(tick); });
    const auto at = [&](double tick) {
      return left + (tick - range.low) / (range.high - range.low) * (width_ - left - right);
    };
    const std::vector<std::string> texts = labels(ticks, YScale::fitted);
    const double base = height_ - bottom;
    std::string out = fmt::format("<g class=\"{}\"><path class=\"axis\" d=\"M{} {}H{}\"/>\n", kind,
                                  left, base, width_ - right);
    for (std::size_t i = 0; i < ticks.size(); ++i)
      out += fmt::format(
          "<path class=\"axis\" d=\"M{0:.1f} {1}v4\"/>"
          "<text class=\"tick\" x=\"{0:.1f}\" y=\"{2}\" text-anchor=\"middle\">{3}</text>\n",
          at(ticks[i]), base, base + 17, texts[i]);
    return out +
           fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text></g>\n",
                       width_ - right, height_ - 5, escaped(name));
  }

  std::string drawn(const Series& series) const {
    std::string path, dots, steps, values;
    bool pen_down = false;
    for (const Point& p : thinned(series.points)) {
      if (!showable(p, chart_.scale)) {
        pen_down = false;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', x(p.x), y(p.y));
      steps += fmt::format("{}{}", steps.empty() ? "" : " ", p.x);
      values += fmt::format("{}{:.5g}", values.empty() ? "" : " ", p.y);
      // A point without neighbors would be invisible as a line.
      if (series.mark == Mark::dots || series.points.size() == 1)
        dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"/>", x(p.x), y(p.y));
      pen_down = true;
    }
    const char* kind = series.mark == Mark::faint_line ? "faint"
                       : series.mark == Mark::dots     ? "thin"
                                                       : "strong";
    return fmt::format(
        "<g class=\"series\" style=\"--c:var({})\" data-label=\"{}\" data-run=\"{}\" "
        "data-x=\"{}\" data-y=\"{}\"><path class=\"{}{}\" d=\"{}\"/>{}</g>\n",
        series.color, escaped(series.label), series.run, steps, values, kind,
        series.dashed ? " dashed" : "", path, dots);
  }

  const Chart& chart_;
  const Clocks& clocks_;
  double width_, height_;
  AxisRange x_, y_, time_;
};

std::string legend(const Chart& chart) {
  std::string out;
  for (const Series& series : chart.series)
    if (!series.points.empty())
      out += fmt::format("<span style=\"--c:var({})\"><i class=\"{}\"></i>{}</span>", series.color,
                         series.mark == Mark::faint_line ? "pale"
                         : series.mark == Mark::dots     ? "dot"
                         : series.dashed                 ? "dashed"
                                                         : "",
                         escaped(series.label));
  for (const auto& [label, color, steps] : chart.marks)
    if (!steps.empty())
      out += fmt::format("<span style=\"--c:var({})\"><i class=\"dash\"></i>{}</span>", color,
                         escaped(label));
  return out;
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  const double largest = std::max(std::abs(low), std::abs(high));
  if (!std::isfinite(raw) || raw <= 0 || raw < largest * 1e-12) return {};  // too fine to count
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double leading : {1.0, 2.0, 5.0})
    if (leading * power >= raw * 0.9) {
      step = leading * power;
      break;
    }
  std::vector<double> ticks;
  // Multiply by the index, so that rounding does not add up; a nearly zero tick is zero.
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i)
    ticks.push_back(i == 0 ? 0.0 : i * step);
  return ticks;
}

std::string compact(double value) {
  if (!std::isfinite(value)) return "–";
  constexpr const char* suffixes[] = {"", " k", " M", " G", " T"};
  std::size_t thousands = 0;
  double scaled = value;
  while (std::abs(scaled) >= 999.5 && thousands + 1 < std::size(suffixes)) {
    scaled /= 1000;
    ++thousands;
  }
  const double size = std::abs(scaled);
  const int decimals = size >= 99.95 || scaled == std::floor(scaled) ? 0 : size >= 9.995 ? 1 : 2;
  return size < 0.1 && size > 0 ? fmt::format("{:.3g}", scaled)
                                : fmt::format("{:.{}f}{}", scaled, decimals, suffixes[thousands]);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

double Clock::time_of(double step) const {
  const auto next = std::ranges::lower_bound(steps, step);
  if (steps.empty()) return 0;
  if (next == steps.end()) return times.back();
  const auto i = static_cast<std::size_t>(next - steps.begin());
  if (i == 0 || steps[i] == step) return times[i];
  const double share = (step - steps[i - 1]) / (steps[i] - steps[i - 1]);
  return times[i - 1] + share * (times[i] - times[i - 1]);
}

std::string draw(const Chart& chart, const Clocks& clocks) {
  std::string out =
      fmt::format("<figure{}><figcaption><b>{}</b> <small>{}</small></figcaption>\n",
                  chart.wide ? " class=\"wide\"" : "", escaped(chart.title), escaped(chart.unit));
  if (Extent(chart).y.empty()) return out + "<p class=\"none\">nothing recorded</p>\n</figure>\n";
  Chart narrow = chart;
  narrow.wide = false;
  if (chart.wide)  // its text would be too small on a phone
    out += "<div class=\"broad\">" + Plot(chart, clocks).svg() + "</div><div class=\"narrow\">" +
           Plot(narrow, clocks).svg() + "</div>\n";
  else
    out += Plot(chart, clocks).svg();
  return out + "<div class=\"legend\">" + legend(chart) + "</div>\n</figure>\n";
}

}  // namespace llamesh::app
