// The line chart and the bar chart: find the range of the values, draw the frame, draw the series, then legend and note below.
#include "tools/ui/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "tools/ui/canvas.h"

namespace sinkgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The least and greatest of the values that an axis can show.
struct Range {
  double low = kInfinity, high = -kInfinity;
  bool logarithmic = false;
  size_t left_out = 0;  // values <= 0 on a logarithmic axis

  static constexpr double kLeast = 1e-300;  // below it logarithms lose their digits
  bool can_hold(double value) const { return is_drawable(value) && (!logarithmic || value > kLeast); }
  void add(double value) {
    if (can_hold(value)) {
      low = std::min(low, value);
      high = std::max(high, value);
    } else {
      left_out += logarithmic && value <= kLeast;
    }
  }
  /// With some air above and below.
  void widen() {
    if (!(low < high)) return;
    const double air = logarithmic ? std::pow(high / low, 0.04) : 0.04 * (high - low);
    low = logarithmic ? low / air : low - air;
    high = logarithmic ? high * air : high + air;
  }
  double length() const { return std::max(high - low, 0.0); }
  /// To at least `length`, around its middle.
  void stretch(double length_wanted) {
    const double missing = std::max(length_wanted - length(), 0.0);
    low -= missing / 2;
    high += missing / 2;
  }
};

/// Where the values are drawn, in pixels.
struct Frame {
  double left, right, top, bottom;
};

constexpr double kMargin = 16, kRight = 24;

/// Title, label and grid of the y axis; returns the frame.
template <class Chart>
Frame draw_frame(Canvas& canvas, const Chart& chart, const Range& range) {
  Frame frame{kMargin, chart.width - kRight, kMargin, chart.height - (chart.x_label.empty() ? 26 : 44)};
  if (!chart.title.empty()) {
    canvas.text(kMargin, frame.top + 10, "title", chart.title);
    frame.top += 22;
  }
  if (!chart.y_label.empty()) {
    canvas.text(kMargin, frame.top + 10, "small", chart.log_y ? chart.y_label + " (logarithmic)" : chart.y_label);
    frame.top += 18;
  }
  frame.top += 6;
  const Axis y(range.low, range.high, range.logarithmic, frame.bottom, frame.top);
  const std::vector<Tick> ticks = y.ticks(6);
  for (const Tick& tick : ticks) frame.left = std::max(frame.left, kMargin + text_width(tick.label, 11) + 8);
  for (const Tick& tick : ticks) {
    canvas.line(frame.left, y(tick.value), frame.right, y(tick.value), "grid");
    canvas.text(frame.left - 8, y(tick.value) + 4, "tick end", tick.label);
  }
  canvas.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis");
  if (!chart.x_label.empty()) canvas.text((frame.left + frame.right) / 2, chart.height - 8, "small middle", chart.x_label);
  return frame;
}

int color_of(const Series& series, size_t position) { return (series.color >= 0 ? series.color : static_cast<int>(position)) % kPaletteSize; }

/// Curves beyond the palette's size are told apart by dashes.
bool dashed(const Series& series, size_t position) { return series.dashed || (series.color < 0 && position / kPaletteSize % 2 == 1); }

void draw_band(Canvas& canvas, const Series& s, int color, const Axis& x, const Axis& y) {
  std::string forth, back;
  const auto flush = [&] {
    if (!forth.empty()) canvas.add("<path class=\"band f{}\" d=\"M{}L{}Z\"/>\n", color, forth.substr(1), back.substr(0, back.size() - 1));
    forth.clear();
    back.clear();
  };
  for (size_t i = 0; i < s.low.size(); ++i) {
    if (!(y.can_show(s.low[i]) && y.can_show(s.high[i]) && x.can_show(s.x[i]))) {
      flush();
      continue;
    }
    forth += fmt::format("L{:.1f} {:.1f}", x(s.x[i]), y(s.high[i]));
    back = fmt::format("{:.1f} {:.1f}L", x(s.x[i]), y(s.low[i])) + back;
  }
  flush();
}

void draw_series(Canvas& canvas, const Series& s, size_t position, const Axis& x, const Axis& y, double top) {
  const int color = color_of(s, position);
  draw_band(canvas, s, color, x, y);
  constexpr size_t kFewPoints = 30;
  const bool dots = s.points || s.x.size() <= kFewPoints;
  const auto shown = [&](size_t i) { return i < s.x.size() && x.can_show(s.x[i]) && y.can_show(s.y[i]); };
  std::string path;
  for (size_t i = 0; i < s.x.size(); ++i)
    if (s.line && shown(i)) path += fmt::format("{}{:.1f} {:.1f}", i > 0 && shown(i - 1) ? "L" : "M", x(s.x[i]), y(s.y[i]));
  if (!path.empty()) canvas.add("<path class=\"curve l{}{}\" d=\"{}\"/>\n", color, dashed(s, position) ? " dashed" : "", path);
  for (size_t i = 0; i < s.x.size(); ++i) {
    const bool alone = shown(i) && !(i > 0 && shown(i - 1)) && !shown(i + 1);
    const std::string place =
        escape_markup(fmt::format("{}{}: {}", s.label.empty() ? "" : s.label + ", ", format_number(s.x[i]), format_number(s.y[i])));
    if (shown(i) && (dots || alone))
      canvas.add("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\"><title>{}</title></circle>\n", color, x(s.x[i]), y(s.y[i]), place);
    const bool breaks_off = !std::isfinite(s.y[i]) && (i == 0 || std::isfinite(s.y[i - 1])) && x.can_show(s.x[i]);
    if (breaks_off)
      canvas.add("<path class=\"cross l{0}\" d=\"M{1:.1f} {3:.1f}L{2:.1f} {4:.1f}M{1:.1f} {4:.1f}L{2:.1f} {3:.1f}\"><title>{5}</title></path>\n",
                 color, x(s.x[i]) - 4, x(s.x[i]) + 4, top - 4, top + 4, place);
  }
}

void check(const Series& series, size_t length, const char* what) {
  const size_t got = series.y.size();
  require(got == length, what, ": '", series.label, "' requires ", length, " values, got ", got);
  const bool band = series.low.size() == series.high.size() && (series.low.empty() || series.low.size() == length);
  require(band, what, ": the band of '", series.label, "' requires ", length, " values, got ", series.low.size(), " and ", series.high.size());
}

/// Legend and note below the chart; returns the height of the whole.
double draw_below(Canvas& canvas, const Frame& frame, double height, double width, const std::vector<LegendEntry>& legend, const std::string& note) {
  const double y = draw_legend(canvas, frame.left, height + 2, width - frame.left - kRight, legend);
  return canvas.paragraph(frame.left, y, width - frame.left - kRight, note) + 10;
}

std::string note_about(const std::string& note, size_t left_out) {
  if (left_out == 0) return note;
  return (note.empty() ? "" : note + " ") +
         fmt::format("{} {} not above 0, which a logarithmic axis cannot show.", left_out, left_out == 1 ? "value is" : "values are");
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  Range horizontal{.logarithmic = chart.log_x}, vertical{.logarithmic = chart.log_y};
  for (const Series& series : chart.series) {
    check(series, series.x.size(), "line chart");
    for (double x : series.x) horizontal.add(x);
    for (const auto* values : {&series.y, &series.low, &series.high})
      for (double y : *values) vertical.add(y);
  }
  for (const ReferenceLine& reference : chart.references) vertical.add(reference.y);
  if (chart.reach > 0)
    for (Range* range : {&horizontal, &vertical})
      for (double end : {-chart.reach, chart.reach}) range->add(end);
  vertical.widen();
  // The frame is known only with the labels of the vertical axis: first enough height for the width, then exactly the width for the height.
  constexpr double kRoomForLabels = 1.15;
  if (chart.equal_axes) vertical.stretch(kRoomForLabels * horizontal.length() * chart.height / chart.width);

  Canvas canvas;
  const Frame frame = draw_frame(canvas, chart, vertical);
  if (chart.equal_axes) horizontal.stretch(vertical.length() * (frame.right - frame.left - 12) / (frame.bottom - frame.top));
  const Axis x(horizontal.low, horizontal.high, chart.log_x, frame.left + 6, frame.right - 6);
  const Axis y(vertical.low, vertical.high, chart.log_y, frame.bottom, frame.top);
  for (const Tick& tick : x.ticks(8, chart.x_integers)) {
    canvas.line(x(tick.value), frame.bottom, x(tick.value), frame.bottom + 4, "axis");
    canvas.text(x(tick.value), frame.bottom + 17, "tick middle", tick.label);
  }
  for (const ReferenceLine& reference : chart.references) {
    if (!y.can_show(reference.y)) continue;
    canvas.line(frame.left, y(reference.y), frame.right, y(reference.y), "reference");
  }
  std::vector<LegendEntry> legend;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    draw_series(canvas, series, i, x, y, frame.top);
    legend.push_back({series.label, color_of(series, i), series.line, dashed(series, i), series.points, false});
  }
  for (const ReferenceLine& reference : chart.references)  // above the curves, which pass behind the letters
    if (y.can_show(reference.y)) canvas.text(frame.right, y(reference.y) - 4, "small end halo", reference.label);
  const double height = draw_below(canvas, frame, chart.height, chart.width, legend, note_about(chart.note, horizontal.left_out + vertical.left_out));
  return canvas.finish(chart.title, chart.description, chart.width, height);
}

std::string bar_chart(const BarChart& chart) {
  const size_t groups = chart.categories.size(), bars = chart.series.size();
  Range range{.logarithmic = chart.log_y};
  if (!chart.log_y) range.add(0);
  for (const Series& series : chart.series) {
    check(series, groups, "bar chart");
    for (double y : series.y) range.add(y);
  }
  const double least = range.low, greatest = range.high;
  range.widen();
  // Bars stand on 0, which needs no air; on a logarithmic axis the smallest bar still needs a visible height.
  if (chart.log_y) range.low = least / 2;
  if (least < 0) range.widen();  // room for the numbers below
  if (!chart.log_y && least == 0) range.low = 0;
  if (!chart.log_y && greatest == 0) range.high = 0;

  Canvas canvas;
  const Frame frame = draw_frame(canvas, chart, range);
  const Axis y(range.low, range.high, chart.log_y, frame.bottom, frame.top);
  const double base = chart.log_y ? frame.bottom : y(0), group_width = (frame.right - frame.left) / static_cast<double>(std::max<size_t>(groups, 1));
  const double bar_width = std::min(0.76 * group_width / static_cast<double>(std::max<size_t>(bars, 1)), 60.0);
  const bool numbers = groups * bars <= 24 && bar_width >= 26;
  double longest = 0;
  for (const std::string& category : chart.categories) longest = std::max(longest, text_width(category, 12) + 8);
  const auto every = std::max<size_t>(1, static_cast<size_t>(std::ceil(longest / group_width)));
  for (size_t group = 0; group < groups; ++group) {
    const double center = frame.left + (static_cast<double>(group) + 0.5) * group_width;
    if (group % every == 0) canvas.text(center, frame.bottom + 17, "tick middle", chart.categories[group]);
    for (size_t bar = 0; bar < bars; ++bar) {
      const Series& series = chart.series[bar];
      const double value = series.y[group], left = center + (static_cast<double>(bar) - static_cast<double>(bars) / 2) * bar_width;
      const std::string place =
          fmt::format("{}{}: {}", chart.categories[group], series.label.empty() ? "" : ", " + series.label, format_number(value));
      const double end = range.can_hold(value) ? y(value) : base;
      canvas.rectangle(left + 1, std::min(base, end), bar_width - 2, std::abs(base - end), fmt::format("f{}", color_of(series, bar)), place);
      if (numbers || !std::isfinite(value))
        canvas.text(left + bar_width / 2, end < base || value >= 0 ? end - 4 : end + 13, "small middle", format_number(value));
    }
  }
  if (!chart.log_y) canvas.line(frame.left, base, frame.right, base, "axis");
  std::vector<LegendEntry> legend;
  for (size_t i = 0; i < bars; ++i) legend.push_back({chart.series[i].label, color_of(chart.series[i], i), false, false, false, true});
  const double height = draw_below(canvas, frame, chart.height, chart.width, legend, note_about(chart.note, range.left_out));
  return canvas.finish(chart.title, chart.description, chart.width, height);
}

}  // namespace sinkgrad
