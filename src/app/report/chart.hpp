#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace llamesh::app {

struct Point {
  double x, y;  ///< a non-finite y interrupts the line
};

enum class Mark {
  line,
  faint_line,  ///< raw values behind a smoothed line
  dots,        ///< few points, joined by a thin line
};

struct Series {
  std::string label;  ///< in the legend
  std::string color;  ///< a CSS custom property, e.g. "--blue"
  Mark mark = Mark::line;
  std::vector<Point> points = {};
  std::size_t run = 0;  ///< the run whose clock gives the times of its steps
  bool dashed = false;
};

/// Completion times of a run's steps, non-decreasing.
struct Clock {
  std::vector<double> steps, times;
  double time_of(double step) const;  ///< linear between its steps, else the nearest one's
};

/// Clocks for all runs on a page, in one time unit.
struct Clocks {
  std::string unit;  ///< "min"
  std::vector<Clock> of_runs;
};

enum class YScale { fitted, from_zero, logarithmic };

/// Vertical dashed lines, named once in the legend if there are any.
struct MarkedSteps {
  std::string label;
  std::string color;  ///< as for a series
  std::vector<double> at = {};
};

/// A line chart.
struct Chart {
  std::string title;
  std::string unit = {};  ///< of y, shown in the title line
  YScale scale = YScale::fitted;
  std::vector<Series> series = {};
  std::vector<MarkedSteps> marks = {};
  bool wide = false;  ///< full page width rather than half
};

/// Draws the chart over the steps as a <figure> with inline SVG; report_style.hpp's style sheet
/// sets fonts and colors. Without any finite point it says "nothing recorded". It embeds the point
/// values and a second axis, with time, for report_script.hpp's script.
std::string draw(const Chart& chart, const Clocks& clocks);

/// Returns about `count` ticks at 1, 2 or 5 times a power of ten within [low, high].
std::vector<double> nice_ticks(double low, double high, int count);

/// Formats a number for display: 1234567 -> "1.23 M"; three significant digits.
std::string compact(double value);

/// Escapes &, <, > and quotes for HTML.
std::string escaped(const std::string& text);

}  // namespace llamesh::app
