// The link chart: lines first, so that the points lie on top of them.
#include <algorithm>

#include "core/check.h"
#include "tools/ui/canvas.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

constexpr double kMargin = 16, kThickest = 7;

/// Maps the plane into a square, one unit as long on both axes, y upwards.
class Plane {
 public:
  Plane(const LinkChart& chart, double left, double top) : left_(left), bottom_(top + chart.size) {
    double x_high = -1e300, y_high = -1e300;
    for (const auto* points : {&chart.from, &chart.to})
      for (size_t i = 0; i + 1 < points->size(); i += 2) {
        x_low_ = std::min(x_low_, (*points)[i]);
        x_high = std::max(x_high, (*points)[i]);
        y_low_ = std::min(y_low_, (*points)[i + 1]);
        y_high = std::max(y_high, (*points)[i + 1]);
      }
    const double width = x_high - x_low_, height = y_high - y_low_, longer = std::max({width, height, 1e-12});
    scale_ = (chart.size - 2 * kMargin) / longer;
    left_ += kMargin + scale_ * (longer - width) / 2;
    bottom_ -= kMargin + scale_ * (longer - height) / 2;
  }
  double x(const std::vector<double>& points, size_t i) const { return left_ + scale_ * (points[2 * i] - x_low_); }
  double y(const std::vector<double>& points, size_t i) const { return bottom_ - scale_ * (points[2 * i + 1] - y_low_); }

 private:
  double left_, bottom_, scale_ = 1, x_low_ = 1e300, y_low_ = 1e300;
};

}  // namespace

std::string link_chart(const LinkChart& chart) {
  const size_t n = chart.from.size() / 2, m = chart.to.size() / 2;
  require(n > 0 && m > 0 && chart.from.size() == 2 * n && chart.to.size() == 2 * m && chart.weights.size() == n * m,
          "link chart: requires (n, 2) and (m, 2) points and n m weights, got ", chart.from.size(), ", ", chart.to.size(), " and ",
          chart.weights.size(), " numbers");
  for (const auto* points : {&chart.from, &chart.to})
    require(std::ranges::all_of(*points, is_drawable), "link chart: points are required to be finite");
  Canvas canvas;
  double top = kMargin;
  if (!chart.title.empty()) {
    canvas.text(kMargin, top + 10, "title", chart.title);
    top += 22;
  }
  const Plane plane(chart, kMargin, top);
  double largest = 0;
  for (double weight : chart.weights)
    if (is_drawable(weight)) largest = std::max(largest, weight);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < m; ++j) {
      const double weight = chart.weights[i * m + j];
      if (!(weight > chart.least) || !is_drawable(weight)) continue;
      canvas.add(
          "<line class=\"curve l6\" style=\"stroke-width:{:.2f}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"><title>{}</title></line>\n",
          std::max(0.3, kThickest * weight / largest), plane.x(chart.from, i), plane.y(chart.from, i), plane.x(chart.to, j), plane.y(chart.to, j),
          escape_markup(fmt::format("{} {}, {} {}: {}", chart.from_label, i, chart.to_label, j, format_number(weight))));
    }
  const auto dots = [&](const std::vector<double>& points, size_t count, int color, const std::string& label) {
    for (size_t i = 0; i < count; ++i)
      canvas.add("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{}</title></circle>\n", color, plane.x(points, i),
                 plane.y(points, i), escape_markup(fmt::format("{} {}", label, i)));
  };
  dots(chart.from, n, 0, chart.from_label);
  dots(chart.to, m, 1, chart.to_label);
  const double width = chart.size + 2 * kMargin;
  double y = draw_legend(canvas, kMargin, top + chart.size + 2, chart.size,
                         {{chart.from_label, 0, false, false, true, false}, {chart.to_label, 1, false, false, true, false}});
  y = canvas.paragraph(kMargin, y, chart.size, chart.note) + 10;
  return canvas.finish(chart.title, chart.description, width, y);
}

}  // namespace sinkgrad
