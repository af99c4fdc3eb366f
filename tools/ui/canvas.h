// What all charts share: a growing SVG document with its style sheet, axes with round tick values, the legend.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "tools/ui/svg.h"

namespace sinkgrad {

constexpr int kPaletteSize = 7;

/// Finite, and far enough from the largest double that ranges do not overflow.
inline bool is_drawable(double value) { return std::abs(value) < 1e300; }

/// Collects elements; the height is known only at the end.
class Canvas {
 public:
  /// Appends markup; the arguments must be escaped already.
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
  }
  /// `style` is one or more of the classes of the style sheet: title, label, small, start/middle/end.
  void text(double x, double y, std::string_view style, std::string_view content);
  void line(double x1, double y1, double x2, double y2, std::string_view style);
  /// With a tooltip when `tooltip` is not empty.
  void rectangle(double x, double y, double width, double height, std::string_view style, std::string_view tooltip = {});
  /// Small print, broken into lines of `width`; returns the y below it.
  double paragraph(double x, double y, double width, std::string_view content);
  std::string finish(std::string_view title, std::string_view description, double width, double height) const;

 private:
  std::string body_;
};

/// The width of text in a sans-serif face, a little generous.
double text_width(std::string_view text, double size);

struct Tick {
  double value;
  std::string label;
};

/// Maps values to pixels.
class Axis {
 public:
  /// Covers low..high (any order of pixels); a range that is empty or reversed is widened around its values.
  Axis(double low, double high, bool logarithmic, double first_pixel, double last_pixel);
  double operator()(double value) const;
  bool can_show(double value) const;
  /// Round values inside the range, about `target` of them.
  std::vector<Tick> ticks(int target, bool integers = false) const;
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double low_, high_;
  bool logarithmic_;
  double first_pixel_, last_pixel_;
};

struct LegendEntry {
  std::string label;
  int color;
  bool line, dashed, points, box;
};

/// Draws the entries in rows from y downwards; returns the y below.
double draw_legend(Canvas& canvas, double left, double y, double width, const std::vector<LegendEntry>& entries);

}  // namespace sinkgrad
