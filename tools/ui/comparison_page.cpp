// One function per section, in the order of the page. Everywhere A stands at the left, B beside it, and the change is B - A.
#include "tools/ui/comparison_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "tools/ui/html.h"
#include "tools/ui/inspection_figures.h"

namespace sinkgrad {
namespace {

constexpr double kMatrix = 230;      // three beside each other
constexpr double kChartWidth = 600;  // two

class ComparisonPage {
 public:
  ComparisonPage(const Comparison& comparison, const std::string& subtitle)
      : c_(comparison), a_(comparison.a.inspection), b_(comparison.b.inspection), page_("Sinkhorn, side by side", subtitle) {}

  std::string str() {
    summary();
    scores();
    plans();
    lines();
    gradients();
    half_steps();
    return page_.str();
  }

 private:
  /// What a column collects in the limit.
  double equal_share() const { return static_cast<double>(b_.rows.size()) / static_cast<double>(b_.columns.size()); }

  void summary() {
    for (const auto& [name, side] : {std::pair("A", &c_.a), std::pair("B", &c_.b)})
      page_.paragraph(fmt::format("{}: {}, {}. {}", name, side->source.title, half_steps_text(side->inspection.half_steps), side->source.details));
    page_.section("In words and numbers");
    for (std::string sentence : changes_in_words(c_)) page_.verdict(Verdict::note, sentence);
    for (const std::string& note : c_.notes) page_.verdict(Verdict::note, note);
    std::vector<std::vector<std::string>> rows;
    for (const ComparedNumber& number : compared_numbers(c_))
      rows.push_back({number.name, format_number(number.a), format_number(number.b), short_number(number.b - number.a)});
    page_.table({"", "A", "B", "B \u2212 A"}, rows, "After the last half-step of each.");
  }

  /// A matrix of each side in one range of colours, and B - A; with sums where `column_sum` says what those of columns ought to be.
  std::vector<std::string> matrices(const std::string& name, const Numbers& a, const Numbers& b, bool diverging,
                                    std::optional<double> column_sum = {}) const {
    Numbers change(a.size());
    for (size_t k = 0; k < a.size(); ++k) change[k] = b[k] - a[k];
    std::vector<HeatMap> maps = {matrix_chart(a_, c_.a.source, name + " of A", "", a, kMatrix),
                                 matrix_chart(b_, c_.b.source, name + " of B", "", b, kMatrix),
                                 matrix_chart(b_, c_.b.source, name + ": B \u2212 A", "", change, kMatrix)};
    const bool rows_are_exact = a_.last().on_rows && b_.last().on_rows;  // then their sums are 1, and 0 of a gradient
    double low = HUGE_VAL, high = -HUGE_VAL;
    for (HeatMap& map : maps) {
      double least = HUGE_VAL, most = -HUGE_VAL;
      for (double& x : map.values) {
        if (!std::isfinite(x)) x = std::numeric_limits<double>::quiet_NaN();
        least = std::min(least, std::isnan(x) ? HUGE_VAL : x);
        most = std::max(most, std::isnan(x) ? -HUGE_VAL : x);
      }
      map.description = fmt::format("{} by {} values from {} to {}", map.rows, map.columns, format_number(least), format_number(most));
      map.column_sums = column_sum.has_value();
      map.row_sums = map.column_sums && !rows_are_exact;
      if (column_sum) map.column_reference = &map == &maps.back() ? 0 : *column_sum;
      map.diverging = diverging || &map == &maps.back();
      if (&map == &maps.back()) continue;
      low = std::min(low, least);
      high = std::max(high, most);
    }
    std::vector<std::string> charts;
    for (HeatMap& map : maps) {
      if (&map != &maps.back()) map.low = low, map.high = high;
      charts.push_back(heat_map(map));
    }
    return charts;
  }

  void scores() {
    if (a_.scores == b_.scores && a_.cotangent == b_.cotangent) return;
    page_.section("What comes in");
    if (a_.scores != b_.scores) page_.figure(matrices("Scores C", a_.scores, b_.scores, false), "Hatched entries are excluded.");
    if (a_.cotangent != b_.cotangent)
      page_.figure(matrices("dL/dP", a_.cotangent, b_.cotangent, true), "Each side has its own loss, so the cotangents differ.");
  }

  void plans() {
    page_.section("The plan");
    page_.figure(matrices("P", a_.last().plan, b_.last().plan, false, equal_share()),
                 "Bars are the sums of columns (dotted: equal shares), and of rows unless they are all 1. Red gains mass from A to B, blue loses.");
  }

  /// A value of each side for every row or column that takes part.
  LineChart by_line(const std::string& title, const std::string& y_label, const std::string& axis, const Numbers& a, const Numbers& b,
                    const std::vector<int64_t>& in_a, const std::vector<int64_t>& in_b) const {
    LineChart chart{.title = title,
                    .description = fmt::format("{} by {}:", y_label, axis),
                    .x_label = axis,
                    .y_label = y_label,
                    .x_integers = true,
                    .width = kChartWidth,
                    .height = 320};
    for (const auto& [name, values, lines] : {std::tuple("A", &a, &in_a), std::tuple("B", &b, &in_b)}) {
      Series series{.label = name, .x = {}, .y = {}, .line = false, .points = true};
      for (int64_t k : *lines) {
        series.x.push_back(static_cast<double>(k));
        series.y.push_back((*values)[static_cast<size_t>(k)]);
      }
      const auto [low, high] = std::ranges::minmax(series.y);
      chart.description += fmt::format(" {} from {} to {};", name, format_number(low), format_number(high));
      chart.series.push_back(std::move(series));
    }
    return chart;
  }

  void lines() {
    page_.section("Row by row, column by column");
    const std::string &row = c_.a.source.row_name, &column = c_.a.source.column_name;
    LineChart sums =
        by_line("What each " + column + " collects", "column sum", column, a_.last().column_sums, b_.last().column_sums, a_.columns, b_.columns);
    sums.references = {{equal_share(), "equal shares"}};
    const LineChart entropies = by_line("How spread each " + row + " is", "entropy in nats", row, row_entropies(a_.last().plan, a_.n, a_.m),
                                        row_entropies(b_.last().plan, b_.n, b_.m), a_.rows, b_.rows);
    page_.figure({line_chart(sums), line_chart(entropies)}, fmt::format("Equal weights on all {} columns would have entropy {}.", b_.columns.size(),
                                                                        format_number(std::log(static_cast<double>(b_.columns.size())))));
  }

  void gradients() {
    page_.section("The gradient");
    page_.figure(matrices("dL/dC", a_.gradient, b_.gradient, true, 0.0),
                 "The unrolled gradient. Its rows sum to 0 after a row step, its columns (bars) only in the limit.");
  }

  void half_steps() {
    page_.section("Over the half-steps");
    LineChart errors{.title = "How far the columns are off",
                     .description = "largest relative deviation of a column sum after each row step, up to the limit",
                     .x_label = "half-steps",
                     .y_label = "columns off by",
                     .log_y = true,
                     .x_integers = true,
                     .width = kChartWidth},
        parts{.title = "How far back the gradient reaches",
              .description = "norm of the part of dL/dC that each half-step contributes",
              .x_label = "half-step",
              .y_label = "norm of its part",
              .log_y = true,
              .x_integers = true,
              .width = kChartWidth};
    const bool same_scores = a_.scores == b_.scores;
    int color = 0;
    for (const auto& [name, side] : {std::pair("A", &a_), std::pair("B", &b_)}) {
      Series error{.label = same_scores ? "A and B" : name, .x = {}, .y = {}, .color = same_scores ? 6 : color},
          taken{.label = fmt::format("{} stops here", name), .x = {}, .y = {}, .line = false, .points = true, .color = color},
          part{.label = name, .x = {}, .y = {}, .points = true, .color = color};
      for (size_t k = 0; k < side->convergence.column_error.size(); k += 2) {
        error.x.push_back(static_cast<double>(k + 1));
        error.y.push_back(side->convergence.column_error[k]);
      }
      taken.x.push_back(side->half_steps);
      taken.y.push_back(side->last().column_error);
      for (size_t k = 0; k < side->steps.size(); ++k) {
        part.x.push_back(static_cast<double>(k + 1));
        part.y.push_back(norm(side->steps[k].contribution));
      }
      if (!same_scores || color == 0) errors.series.push_back(std::move(error));
      errors.series.push_back(std::move(taken));
      parts.series.push_back(std::move(part));
      ++color;
    }
    page_.figure({line_chart(errors), line_chart(parts)});
  }

  const Comparison& c_;
  const Inspection &a_, &b_;
  HtmlPage page_;
};

}  // namespace

std::string comparison_page(const Comparison& comparison, const std::string& subtitle) { return ComparisonPage(comparison, subtitle).str(); }

}  // namespace sinkgrad
