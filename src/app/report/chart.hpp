#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace llamesh::app {

struct Point {
  double x, y;  ///< a y that is not finite interrupts the line
};

enum class Mark {
  line,
  faint_line,  ///< raw values behind a smoothed line
  dots,        ///< few points, joined by a thin line
};

struct Series {
  std::string label;   ///< in the legend
  std::string colour;  ///< name of a CSS custom property, e.g. "--blue"
  Mark mark = Mark::line;
  std::vector<Point> points = {};
  std::size_t run = 0;  ///< whose clock tells the time of its steps
  bool dashed = false;
};

/// When a run's steps were done: times that do not decrease, by step.
struct Clock {
  std::vector<double> steps, times;
  double time_of(double step) const;  ///< linear between its steps, else that of the nearest
};

/// The clocks of all runs of a page, in one unit of time.
struct Clocks {
  std::string unit;  ///< "min"
  std::vector<Clock> of_runs;
};

enum class YScale { fitted, from_zero, logarithmic };

/// Vertical dashed lines, named once in the legend where there are any.
struct MarkedSteps {
  std::string label;
  std::string colour;  ///< as that of a series
  std::vector<double> at = {};
};

/// A line chart.
struct Chart {
  std::string title;
  std::string unit = {};  ///< of y, in the title's line
  YScale scale = YScale::fitted;
  std::vector<Series> series = {};
  std::vector<MarkedSteps> marks = {};
  bool wide = false;  ///< across the page rather than half of it
};

/// The chart over the steps as a <figure> with inline SVG; it relies on the style sheet of
/// report_style.hpp for fonts and colours. Without any finite point it says "nothing recorded". For
/// the script of report_script.hpp it has the values of its points and a second axis, of time.
std::string draw(const Chart& chart, const Clocks& clocks);

/// Ticks at 1, 2 or 5 times a power of ten within [low, high], about `count` of them.
std::vector<double> nice_ticks(double low, double high, int count);

/// A number for display: 1234567 -> "1.23 M"; three significant digits.
std::string compact(double value);

/// Escapes &, <, > and quotes for HTML.
std::string escaped(const std::string& text);

}  // namespace llamesh::app
