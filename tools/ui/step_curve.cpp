// Both axes are logarithmic: truncation is a line of slope 2 (4 once extrapolated), rounding one of slope -1.
#include "tools/ui/step_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sinkgrad {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// The least error that an extrapolated or central curve reaches, and where.
std::pair<double, double> least(const GradcheckCurve& c, const std::vector<double>& errors) {
  std::pair<double, double> best{kNaN, kNaN};
  for (size_t i = 0; i < errors.size(); ++i)
    if (errors[i] > 0 && !(errors[i] >= best.second)) best = {c.steps[i], errors[i]};
  return best;
}

/// A line of the given slope through (step, error), as far as it lies between low and high and within the steps.
Series guide(const std::string& label, const GradcheckCurve& c, double slope, double step, double error, double low, double high, int color) {
  constexpr int kPoints = 40;  // so many that they are not drawn as dots
  Series line{.label = label, .dashed = true, .color = color};
  const auto at = [&](double e) { return std::clamp(step * std::pow(e / error, 1 / slope), c.steps.back(), c.steps.front()); };
  const double from = at(low), to = at(high);
  for (int i = 0; i <= kPoints; ++i) {
    line.x.push_back(from * std::pow(to / from, static_cast<double>(i) / kPoints));
    line.y.push_back(std::clamp(error * std::pow(line.x.back() / step, slope), low, high));
  }
  return line;
}

/// The median of error * h where rounding rules.
double rounding_of(const GradcheckCurve& c) {
  std::vector<double> products;
  for (size_t i = 0; i < c.steps.size(); ++i)
    if (c.steps[i] < 1e-8 && c.central[i] > 0 && std::isfinite(c.central[i])) products.push_back(c.central[i] * c.steps[i]);
  if (products.empty()) return kNaN;
  std::nth_element(products.begin(), products.begin() + static_cast<ptrdiff_t>(products.size() / 2), products.end());
  return products[products.size() / 2];
}

}  // namespace

LineChart step_curve(const GradcheckCurve& c) {
  const GradcheckReport& r = c.report;
  const auto [step, error] = least(c, c.central);
  LineChart chart{.title = fmt::format("{}, sample {}: error of {} over the step", r.op, r.sample, c.entry.place()),
                  .x_label = "step h, in units of max(1, |x|) (logarithmic)",
                  .y_label = "|numeric \u2212 analytic| / largest entry",
                  .log_x = true,
                  .log_y = true,
                  .width = 760,
                  .height = 460};
  chart.series = {{.label = "central difference", .x = c.steps, .y = c.central, .color = 0},
                  {.label = "extrapolated from h and h/2", .x = c.steps, .y = c.extrapolated, .color = 1}};
  chart.references = {{c.tolerance, fmt::format("tolerance {:.0e}", c.tolerance)}};
  double low = c.tolerance, high = c.tolerance;
  for (const Series& s : chart.series)
    for (double e : s.y)
      if (std::isfinite(e) && e > 0) low = std::min(low, e), high = std::max(high, e);
  chart.series.push_back(
      {.label = fmt::format("step of the check, {:.0e}", c.step), .x = {c.step, c.step}, .y = {low, high}, .dashed = true, .color = 6});
  const double rounding = rounding_of(c);
  if (r.passed() && rounding > 0 && c.central.front() > 1e3 * error) {
    const Series truncation = guide("truncation, slope 2", c, 2, c.steps.front(), c.central.front(), low, high, 2);
    const Series noise = guide("rounding, slope \u22121", c, -1, c.steps.back(), rounding / c.steps.back(), low, high, 3);
    chart.series.insert(chart.series.begin(), {truncation, noise});  // below the curves
  }
  const char* verdict = name_of(r.verdict());
  chart.description = fmt::format(
      "Error of the difference quotient over steps from 0.1 to 1e-12. The central difference is best at h = {:.0e} with {:.0e}; the check steps "
      "by {:.0e}, its tolerance is {:.0e}; the sample's verdict is {}.",
      step, error, c.step, c.tolerance, verdict);
  chart.note = r.passed() ? "From the right the error falls with h\u00b2 (h\u2074 once extrapolated): truncation. To the left it rises with 1/h: "
                            "rounding. Between the two the differences verify the gradient."
                          : fmt::format(
                                "Verdict {}. Where a backward is wrong, the error stays at one height whatever the step; at a kink or "
                                "under cancellation no step reaches the tolerance reliably.",
                                verdict);
  return chart;
}

}  // namespace sinkgrad
