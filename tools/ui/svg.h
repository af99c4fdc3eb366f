// Charts as SVG text: a line chart, grouped bars, a heat map with marginal sums, linked points. Each is a complete file and can also be put into a
// page. No scripts, no fonts to fetch, no ids (two charts in one page cannot clash); colours suit colour-blind readers, light and dark mode.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sinkgrad {

/// Text that can stand in markup or in a quoted attribute. Bytes that XML cannot hold (controls, malformed UTF-8) become U+FFFD.
std::string escape_markup(std::string_view text);
/// A number for people: four significant digits, a true minus sign, "NaN".
std::string format_number(double value);

/// One curve. NaN breaks the line, and a small cross on the upper edge marks the place.
struct Series {
  std::string label;                  // empty: not in the legend
  std::vector<double> x, y;           // of equal length
  std::vector<double> low{}, high{};  // of a shaded band around y, of the same length or empty
  bool dashed = false;
  bool line = true, points = false;
  int color = -1;  // index into the palette; -1: the position in the chart
};

/// A thin line across the chart, such as a predicted value.
struct ReferenceLine {
  double y;
  std::string label;
};

struct LineChart {
  std::string title, description;  // description: what a reader who cannot see the chart is told
  std::string x_label{}, y_label{};
  std::vector<Series> series{};
  std::vector<ReferenceLine> references{};
  bool log_x = false, log_y = false;  // values <= 0 are left out and counted in the note
  bool x_integers = false;            // ticks on whole numbers only
  bool equal_axes = false;            // one unit is as long on both axes, as on a map
  double reach = 0;                   // both axes cover at least -reach .. reach
  std::string note{};                 // small print under the legend
  double width = 720, height = 400;   // of the chart without legend and note
};

struct BarChart {
  std::string title, description;
  std::string x_label{}, y_label{};
  std::vector<std::string> categories{};
  std::vector<Series> series{};  // y holds one value per category; x is not used
  bool log_y = false;
  std::string note{};
  double width = 720, height = 360;
};

/// Row-major values. At most 64 rows and columns are drawn: beyond that each cell is the mean of a block, and the note says so.
/// NaN is hatched; a row or column of nothing else is absent, the sums and means of the others go on without it.
/// With `picture` the cells are one embedded picture: a hundredth of the bytes, but no value is shown when one points at a cell.
struct HeatMap {
  std::string title, description;
  size_t rows, columns;
  std::vector<double> values;
  std::vector<std::string> row_labels{}, column_labels{};     // empty: indices
  std::string missing = "NaN";                                // what a NaN, drawn hatched, is called
  std::string row_axis{}, column_axis{};                      // what rows and columns are, such as "query" and "key"
  bool diverging = false;                                     // blue - white - red around 0, for signed values
  std::optional<double> low{}, high{};                        // the colour range; default: that of the values
  bool row_sums = false, column_sums = false;                 // bars at the right and below
  std::optional<double> row_reference{}, column_reference{};  // what the sums ought to be: a dotted line
  std::string note{};
  double size = 420;      // of the longer side of the matrix
  double row_height = 0;  // in pixels, for strips; 0: square cells
  bool picture = false;
};

/// Two sets of points in the plane, and a line between each pair whose width is proportional to its weight.
struct LinkChart {
  std::string title, description;
  std::string from_label{}, to_label{};  // what the points of each set are, such as "query" and "key"
  std::vector<double> from, to;          // (n, 2) and (m, 2): x and y of each point
  std::vector<double> weights;           // (n, m)
  double least = 0;                      // weights up to this are not drawn
  std::string note{};
  double size = 340;
};

/// Throws Error when lengths do not match.
std::string line_chart(const LineChart& chart);
std::string bar_chart(const BarChart& chart);
std::string heat_map(const HeatMap& map);
std::string link_chart(const LinkChart& chart);

}  // namespace sinkgrad
