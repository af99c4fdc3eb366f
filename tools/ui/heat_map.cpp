// The heat map: the matrix as coloured cells, its marginal sums as bars, a scale of the colours.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/check.h"
#include "tools/ui/canvas.h"
#include "tools/ui/png.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

constexpr size_t kMostCells = 64;  // per side

struct Color {
  double red, green, blue;  // 0..255
};

// Viridis (Smith and van der Walt) and ColorBrewer's RdBu, both safe for colour-blind readers and in grey print.
constexpr std::array<Color, 10> kSequential = {{{68, 1, 84},
                                                {72, 40, 120},
                                                {62, 73, 137},
                                                {49, 104, 142},
                                                {38, 130, 142},
                                                {31, 158, 137},
                                                {53, 183, 121},
                                                {110, 206, 88},
                                                {181, 222, 43},
                                                {253, 231, 37}}};
constexpr std::array<Color, 7> kDiverging = {
    {{33, 102, 172}, {103, 169, 207}, {209, 229, 240}, {247, 247, 247}, {253, 219, 199}, {239, 138, 98}, {178, 24, 43}}};

template <size_t N>
Color interpolate(const std::array<Color, N>& anchors, double part) {
  const double place = std::clamp(part, 0.0, 1.0) * (N - 1);
  const auto i = std::min(static_cast<size_t>(place), N - 2);
  const double t = place - static_cast<double>(i);
  const Color &a = anchors[i], &b = anchors[i + 1];
  return {a.red + t * (b.red - a.red), a.green + t * (b.green - a.green), a.blue + t * (b.blue - a.blue)};
}

std::string hex(Color c) { return fmt::format("#{:02x}{:02x}{:02x}", std::lround(c.red), std::lround(c.green), std::lround(c.blue)); }

/// Whether black stands out from it more than white: by WCAG's relative luminance, at which both have a contrast of 4.4.
bool pale(Color c) {
  const auto linear = [](double part) { return part <= 10 ? part / 255 / 12.92 : std::pow((part / 255 + 0.055) / 1.055, 2.4); };
  return 0.2126 * linear(c.red) + 0.7152 * linear(c.green) + 0.0722 * linear(c.blue) > 0.19;
}

/// For each line whether it holds anything but NaN.
std::vector<bool> present_lines(const HeatMap& map, bool rows) {
  std::vector<bool> present(rows ? map.rows : map.columns);
  for (size_t k = 0; k < map.values.size(); ++k)
    if (!std::isnan(map.values[k])) present[rows ? k / map.columns : k % map.columns] = true;
  return present;
}

/// The map with at most kMostCells rows and columns, its marginal sums taken before blocks are averaged. Absent lines are left out of both.
struct Matrix {
  size_t rows, columns, row_block, column_block;
  std::vector<double> values, row_sums, column_sums;  // sums: the mean over the lines of a block
  std::vector<double> heights, widths;                // of the blocks: how many lines are present
  double typical_line = 0;                            // the mean absolute sum of a row, what a sum of 0 is to be compared with

  explicit Matrix(const HeatMap& map)
      : row_block((map.rows + kMostCells - 1) / kMostCells), column_block((map.columns + kMostCells - 1) / kMostCells) {
    rows = (map.rows + row_block - 1) / row_block;
    columns = (map.columns + column_block - 1) / column_block;
    const std::vector<bool> row_present = present_lines(map, true), column_present = present_lines(map, false);
    heights = counts(row_present, row_block, rows);
    widths = counts(column_present, column_block, columns);
    for (double height : heights) row_sums.push_back(height > 0 ? 0 : kAbsent);
    for (double width : widths) column_sums.push_back(width > 0 ? 0 : kAbsent);
    for (double height : heights)
      for (double width : widths) values.push_back(height * width > 0 ? 0 : kAbsent);
    for (size_t i = 0; i < map.rows; ++i) {
      for (size_t j = 0; j < map.columns; ++j) {
        if (!row_present[i] || !column_present[j]) continue;
        const double value = map.values[i * map.columns + j];
        const size_t row = i / row_block, column = j / column_block;
        values[row * columns + column] += value / (heights[row] * widths[column]);
        row_sums[row] += value / heights[row];
        column_sums[column] += value / widths[column];
        if (is_drawable(value)) typical_line += std::abs(value) / static_cast<double>(map.rows);
      }
    }
  }

 private:
  static constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

  /// How many lines of each block are present.
  static std::vector<double> counts(const std::vector<bool>& present, size_t block, size_t blocks) {
    std::vector<double> count(blocks);
    for (size_t i = 0; i < present.size(); ++i) count[i / block] += present[i];
    return count;
  }
};

class HeatMapDrawing {
 public:
  explicit HeatMapDrawing(const HeatMap& map) : map_(map), matrix_(map) {
    // Whole pixels leave no seams between cells.
    const size_t longer = map.row_height > 0 ? matrix_.columns : std::max(matrix_.rows, matrix_.columns);
    cell_ = std::clamp(std::floor(map.size / static_cast<double>(longer)), 3.0, 56.0);
    height_ = map.row_height > 0 ? map.row_height : cell_;
    choose_range();
    double label_width = 0;
    for (size_t i = 0; i < matrix_.rows; i += label_step(height_)) label_width = std::max(label_width, text_width(row_label(i), 11));
    left_ = std::ceil(kMargin + label_width + 8 + (map.row_axis.empty() ? 0 : 16));
    double label_height = 0;
    for (size_t j = 0; j < matrix_.columns; j += column_step()) label_height = std::max(label_height, text_width(column_label(j), 11));
    slanted_ = label_height > cell_ * static_cast<double>(column_step());
    top_ = std::ceil(kMargin + (map.title.empty() ? 0 : 24) + (map.column_axis.empty() ? 0 : 16) + (slanted_ ? label_height + 6 : 18));
    right_ = left_ + cell_ * static_cast<double>(matrix_.columns);
    bottom_ = top_ + height_ * static_cast<double>(matrix_.rows);
  }

  std::string draw() {
    if (!map_.title.empty()) canvas_.text(kMargin, kMargin + 10, "title", map_.title);
    draw_labels();
    draw_cells();
    double width = right_ + 12, height = bottom_ + 12;
    if (map_.row_sums) draw_row_sums(width);
    if (map_.column_sums) draw_column_sums(height);
    width = draw_scale(width + 10);
    width = std::max({width, kMargin + text_width(map_.title, 15) + kMargin, right_ + 12 + text_width("column sums", 11) + kMargin});
    std::string note = map_.note;
    if (matrix_.row_block * matrix_.column_block > 1)
      note += fmt::format("{}Each cell is the mean of a block of {} x {} values of the {} x {} matrix.", note.empty() ? "" : " ", matrix_.row_block,
                          matrix_.column_block, map_.rows, map_.columns);
    height = canvas_.paragraph(kMargin, std::max(height, top_ + scale_height() + 12), width - 2 * kMargin, note) + 10;
    return canvas_.finish(map_.title, map_.description, width, height);
  }

 private:
  static constexpr double kMargin = 16, kBar = 64;

  void choose_range() {
    low_ = std::numeric_limits<double>::infinity(), high_ = -low_;
    for (double value : matrix_.values) {
      if (!is_drawable(value)) continue;
      low_ = std::min(low_, value);
      high_ = std::max(high_, value);
    }
    if (!(low_ <= high_)) low_ = high_ = 0;
    low_ = map_.low.value_or(low_);
    high_ = map_.high.value_or(high_);
    if (map_.diverging) low_ = -(high_ = std::max(std::abs(low_), std::abs(high_)));
  }
  Color color(double value) const {
    const double part = high_ > low_ ? (value - low_) / (high_ - low_) : map_.diverging ? 0.5 : 0.0;
    return map_.diverging ? interpolate(kDiverging, part) : interpolate(kSequential, part);
  }
  /// Labels must be 13 pixels apart.
  static size_t label_step(double cell) { return static_cast<size_t>(std::ceil(13 / cell)); }
  size_t column_step() const { return label_step(cell_ * 13 / 22); }  // and these 22
  std::string row_label(size_t i) const {
    return map_.row_labels.empty() ? std::to_string(i * matrix_.row_block) : map_.row_labels[i * matrix_.row_block];
  }
  std::string column_label(size_t j) const {
    return map_.column_labels.empty() ? std::to_string(j * matrix_.column_block) : map_.column_labels[j * matrix_.column_block];
  }
  double row_middle(size_t i) const { return top_ + (static_cast<double>(i) + 0.5) * height_; }
  double column_middle(size_t j) const { return left_ + (static_cast<double>(j) + 0.5) * cell_; }

  void draw_labels() {
    for (size_t i = 0; i < matrix_.rows; i += label_step(height_)) canvas_.text(left_ - 6, row_middle(i) + 4, "tick small end", row_label(i));
    for (size_t j = 0; j < matrix_.columns; j += column_step()) {
      const std::string label = escape_markup(column_label(j));
      const double x = column_middle(j), y = top_ - 6;
      slanted_ ? canvas_.add("<text class=\"tick small\" transform=\"translate({:.1f} {:.1f}) rotate(-90)\">{}</text>\n", x + 4, y, label)
               : canvas_.add("<text class=\"tick small middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x, y, label);
    }
    if (!map_.column_axis.empty()) canvas_.text((left_ + right_) / 2, kMargin + (map_.title.empty() ? 10 : 34), "small middle", map_.column_axis);
    if (!map_.row_axis.empty())
      canvas_.add("<text class=\"small middle\" transform=\"translate({:.1f} {:.1f}) rotate(-90)\">{}</text>\n", kMargin + 8.0, (top_ + bottom_) / 2,
                  escape_markup(map_.row_axis));
  }

  void draw_cells() {
    const bool numbers = cell_ >= 38 && height_ >= 16;
    if (map_.picture && !numbers) return draw_picture();
    for (size_t i = 0; i < matrix_.rows; ++i) {
      for (size_t j = 0; j < matrix_.columns; ++j) {
        const double value = matrix_.values[i * matrix_.columns + j], x = left_ + static_cast<double>(j) * cell_,
                     y = top_ + static_cast<double>(i) * height_;
        const std::string place = escape_markup(fmt::format("{}, {}: {}", row_label(i), column_label(j), number_text(value)));
        const Color fill = color(value);
        if (std::isnan(value)) {
          draw_hatched(x, y, place);
          continue;
        }
        canvas_.add("<rect fill=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>{}</title></rect>\n", hex(fill), x, y,
                    cell_, height_, place);
        if (numbers)
          canvas_.text(column_middle(j), row_middle(i) + 4, pale(fill) ? "small middle oncell pale" : "small middle oncell", short_number(value));
      }
    }
  }
  void draw_picture() {
    const bool any_hatched = std::any_of(matrix_.values.begin(), matrix_.values.end(), [](double value) { return std::isnan(value); });
    const size_t fine = any_hatched ? 4 : 1;  // pixels per side of a cell: a diagonal must fit
    std::vector<uint8_t> pixels;
    for (size_t y = 0; y < fine * matrix_.rows; ++y)
      for (size_t x = 0; x < fine * matrix_.columns; ++x) {
        const double value = matrix_.values[y / fine * matrix_.columns + x / fine];
        const bool hatched = std::isnan(value);
        const Color c = hatched ? Color{139, 147, 158} : color(value);
        for (double part : {c.red, c.green, c.blue, hatched && (x + y) % fine != 0 ? 0.0 : 255.0})
          pixels.push_back(static_cast<uint8_t>(std::lround(part)));
      }
    canvas_.rectangle(left_, top_, right_ - left_, bottom_ - top_, "empty");
    canvas_.add("<image class=\"cells\" preserveAspectRatio=\"none\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" href=\"{}\"/>\n",
                left_, top_, right_ - left_, bottom_ - top_, png_address(fine * matrix_.columns, fine * matrix_.rows, pixels));
  }
  void draw_hatched(double x, double y, const std::string& place) {
    canvas_.add("<g><title>{}</title>", place);
    canvas_.rectangle(x, y, cell_, height_, "empty");
    canvas_.line(x, y + height_, x + cell_, y, "hatch");
    canvas_.line(x, y + height_ / 2, x + cell_ / 2, y, "hatch");
    canvas_.line(x + cell_ / 2, y + height_, x + cell_, y + height_ / 2, "hatch");
    canvas_.add("</g>\n");
  }
  std::string number_text(double value) const { return std::isnan(value) ? map_.missing : format_number(value); }
  /// At most two decimals, or one digit with an exponent: what fits a cell.
  static std::string short_number(double value) {
    if (value == 0 || (std::abs(value) >= 0.01 && std::abs(value) < 100)) return format_number(std::round(value * 100) / 100);
    if (!is_drawable(value)) return format_number(value);
    const int exponent = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
    return format_number(std::round(value / std::pow(10.0, exponent))) + "e" + format_number(exponent);
  }

  /// A sum that vanishes but for rounding is shown as 0, that of an absent line not at all.
  std::string sum_text(double sum, double lines) const {
    return lines == 0 ? "" : short_number(std::abs(sum) < 1e-12 * matrix_.typical_line ? 0 : sum);
  }
  std::string row_sum_text(size_t i) const { return sum_text(matrix_.row_sums[i], matrix_.heights[i]); }
  std::string column_sum_text(size_t j) const { return sum_text(matrix_.column_sums[j], matrix_.widths[j]); }

  /// The range of the bars. Sums that vanish but for rounding are compared with what they sum up, so that they look like nothing.
  Axis bar_axis(const std::vector<double>& sums, std::optional<double> reference, double first, double last) const {
    double low = 0, high = reference.value_or(0);
    for (double sum : sums) {
      if (!is_drawable(sum)) continue;
      low = std::min(low, sum);
      high = std::max(high, sum);
    }
    const double least = std::max(1e-3 * matrix_.typical_line, 1e-300);
    if (high - low < least) low = -(high = least);
    return {low, high, false, first, last};
  }

  /// In a picture small bars are one path, see end_bars.
  void draw_bar(double x, double y, double width, double height, bool large, const std::string& tooltip) {
    if (!map_.picture || large)
      canvas_.rectangle(x, y, width, height, "f0", tooltip);
    else
      bars_ += fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h{:.1f}z", x, y, width, height, -width);
  }
  void end_bars() {
    if (!bars_.empty()) canvas_.add("<path class=\"f0\" d=\"{}\"/>\n", bars_);
    bars_.clear();
  }

  void draw_row_sums(double& right) {
    const bool numbers = height_ >= 13;
    const double end = right + kBar;
    double number_width = 0;
    const Axis x = bar_axis(matrix_.row_sums, map_.row_reference, right, end);
    for (size_t i = 0; i < matrix_.rows; ++i) {
      const double sum = matrix_.row_sums[i], a = x(0), b = is_drawable(sum) ? x(sum) : a;
      draw_bar(std::min(a, b), row_middle(i) - 0.35 * height_, std::abs(b - a), 0.7 * height_, numbers,
               fmt::format("row {}: sum {}", row_label(i), number_text(sum)));
      if (!numbers) continue;
      canvas_.text(end + 6, row_middle(i) + 4, "small", row_sum_text(i));
      number_width = std::max(number_width, text_width(row_sum_text(i), 11) + 6);
    }
    end_bars();
    canvas_.line(x(0), top_, x(0), bottom_, "axis");
    if (map_.row_reference) canvas_.line(x(*map_.row_reference), top_ - 4, x(*map_.row_reference), bottom_ + 4, "reference");
    canvas_.text((right + end) / 2, top_ - 6, "small middle", "row sums");
    right = end + number_width + 6;
  }

  void draw_column_sums(double& bottom) {
    bool numbers = true;
    for (size_t j = 0; j < matrix_.columns; ++j) numbers = numbers && text_width(column_sum_text(j), 11) + 4 <= cell_;
    const double end = bottom + kBar;
    const Axis y = bar_axis(matrix_.column_sums, map_.column_reference, end, bottom);
    for (size_t j = 0; j < matrix_.columns; ++j) {
      const double sum = matrix_.column_sums[j], a = y(0), b = is_drawable(sum) ? y(sum) : a;
      draw_bar(column_middle(j) - 0.35 * cell_, std::min(a, b), 0.7 * cell_, std::abs(b - a), numbers,
               fmt::format("column {}: sum {}", column_label(j), number_text(sum)));
      if (numbers) canvas_.text(column_middle(j), end + 14, "small middle", column_sum_text(j));
    }
    end_bars();
    canvas_.line(left_, y(0), right_, y(0), "axis");
    if (map_.column_reference) {
      canvas_.line(left_ - 4, y(*map_.column_reference), right_ + 4, y(*map_.column_reference), "reference");
      canvas_.text(right_ + 12, y(*map_.column_reference) + 4, "small", format_number(*map_.column_reference));
    }
    canvas_.text(right_ + 12, end + (numbers ? 14 : 4), "small", "column sums");
    bottom = end + (numbers ? 22 : 8);
  }

  /// Three labels must fit beside it, also where the matrix is a strip.
  double scale_height() const { return std::clamp(bottom_ - top_, 44.0, 160.0); }

  /// The colour scale at the right; returns the width of the whole.
  double draw_scale(double x) {
    constexpr int kSteps = 32;
    const double height = scale_height() / kSteps;
    for (int i = 0; i < kSteps; ++i)
      canvas_.add("<rect fill=\"{}\" x=\"{:.1f}\" y=\"{:.2f}\" width=\"10\" height=\"{:.2f}\"/>\n",
                  hex(color(high_ - (high_ - low_) * i / (kSteps - 1))), x, top_ + i * height, height + 0.3);
    canvas_.text(x + 15, top_ + 10, "small", format_number(high_));
    canvas_.text(x + 15, top_ + kSteps * height, "small", format_number(low_));
    if (map_.diverging && high_ > 0) canvas_.text(x + 15, top_ + kSteps * height / 2 + 4, "small", "0");
    return x + 15 + std::max(text_width(format_number(high_), 11), text_width(format_number(low_), 11)) + kMargin;
  }

  const HeatMap& map_;
  Matrix matrix_;
  Canvas canvas_;
  std::string bars_;
  double cell_, height_, left_, right_, top_, bottom_, low_, high_;
  bool slanted_;
};

}  // namespace

std::string heat_map(const HeatMap& map) {
  require(map.values.size() == map.rows * map.columns && !map.values.empty(), "heat map: requires a matrix with one value per cell, got ", map.rows,
          " x ", map.columns, " and ", map.values.size(), " values");
  const auto labelled = [](const std::vector<std::string>& labels, size_t count) { return labels.empty() || labels.size() == count; };
  require(labelled(map.row_labels, map.rows) && labelled(map.column_labels, map.columns), "heat map: requires ", map.rows, " row labels and ",
          map.columns, " column labels (or none), got ", map.row_labels.size(), " and ", map.column_labels.size());
  return HeatMapDrawing(map).draw();
}

}  // namespace sinkgrad
