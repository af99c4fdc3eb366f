// One function per section, in the order of the page.
#include "tools/ui/inspection_page.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tools/ui/html.h"
#include "tools/ui/inspection_figures.h"

namespace sinkgrad {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kChartWidth = 600;  // two beside each other
constexpr size_t kMostFrames = 16;   // keeps the page below 2 MB at 64 x 64

/// The half-steps that are drawn: all, or the first and the last.
std::vector<size_t> drawn_steps(size_t count) {
  std::vector<size_t> steps;
  for (size_t k = 0; k < count; ++k)
    if (count <= kMostFrames || k < kMostFrames / 2 || k >= count - kMostFrames / 2) steps.push_back(k);
  return steps;
}

class InspectionPage {
 public:
  InspectionPage(const Inspection& inspection, const InspectionSource& source, const std::string& subtitle)
      : i_(inspection), source_(source), page_("Sinkhorn, half-step by half-step", subtitle) {}

  std::string str() {
    summary();
    scores();
    forward();
    potentials();
    convergence();
    backward();
    gradient();
    jacobian();
    modes();
    glossary();
    return page_.str();
  }

 private:
  size_t n() const { return static_cast<size_t>(i_.n); }
  size_t m() const { return static_cast<size_t>(i_.m); }
  double column_target() const { return static_cast<double>(i_.rows.size()) / static_cast<double>(i_.columns.size()); }
  double rate() const { return i_.limit.sigma2 * i_.limit.sigma2; }

  HeatMap matrix(const std::string& title, const std::string& description, const Numbers& values, double size) const {
    return matrix_chart(i_, source_, title, description, values, size);
  }

  void summary() {
    page_.paragraph(fmt::format("{}, {}.{}", source_.title, half_steps_text(i_.half_steps), source_.details.empty() ? "" : " " + source_.details));
    page_.section("In words");
    const InspectedStep& last = i_.last();
    const auto state = [](const char* lines, double error) {
      return error < 1e-12 ? fmt::format("{} have their sums (to rounding)", lines) : fmt::format("{} are off by {}", lines, short_number(error));
    };
    std::string text =
        fmt::format("After {} {} and {}.", half_steps_text(i_.half_steps), state("rows", last.row_error), state("columns", last.column_error));
    if (rate() > 0 && rate() < 1)
      text += fmt::format(" Each further pair of half-steps divides the error by {} in the long run.", short_number(1 / rate()));
    page_.verdict(Verdict::note, text);
    for (const std::string& warning : i_.warnings) page_.verdict(Verdict::note, warning);
    const double scale = std::max(largest(i_.gradient), std::numeric_limits<double>::min());
    const auto check = [&](bool ok, const std::string& sentence) { page_.verdict(ok ? Verdict::good : Verdict::bad, sentence); };
    check(i_.contributions_difference <= 1e-12 * std::max(1.0, scale),
          fmt::format("the parts of all half-steps sum to the gradient dL/dC within {} (its largest entry is {})",
                      short_number(i_.contributions_difference), short_number(scale)));
    check(i_.fused_plan_difference <= 1e-12,
          fmt::format("the fused operator gives the plan of the half-steps taken one by one within {}", short_number(i_.fused_plan_difference)));
    for (const InspectedMode& mode : i_.modes)
      if (mode.name == "finite_differences" && !mode.gradient.empty())
        check(mode.difference <= 1e-6,
              fmt::format("finite differences agree with the unrolled gradient within {} of its largest entry", short_number(mode.difference)));
  }

  void scores() {
    page_.section("Scores and cotangent");
    Numbers shown = hatched(i_, i_.scores);
    for (double& x : shown)
      if (!std::isfinite(x)) x = kNan;
    HeatMap c = matrix("Scores C", fmt::format("{} by {} scores, from {} to {}", n(), m(), format_number(least(shown)), format_number(most(shown))),
                       shown, 340),
            w = matrix("Cotangent W = dL/dP", "how the loss changes with each entry of the plan, around 0", i_.cotangent, 340);
    w.diverging = true;
    page_.figure({heat_map(c), heat_map(w)},
                 "What comes in: scores from the left, and the loss L = \u2329W, P\u232a that is differentiated. Hatched entries are excluded.");
  }

  void forward() {
    page_.section("Forward: the plan after each half-step");
    page_.paragraph(
        "A row step scales every row to sum 1, a column step every column to the same sum. Each undoes a little of the other: one half-step is "
        "softmax, many are doubly stochastic.");
    double high = 0;
    for (const InspectedStep& s : i_.steps) high = std::max(high, s.largest);
    std::vector<HtmlFrame> frames;
    const std::vector<size_t> drawn = drawn_steps(i_.steps.size());
    for (size_t k : drawn) {
      const InspectedStep& s = i_.steps[k];
      HeatMap map = matrix(fmt::format("P after half-step {}", half_step_name(k)),
                           fmt::format("row sums are off by at most {}, column sums by {}; the largest entry is {}", format_number(s.row_error),
                                       format_number(s.column_error), format_number(s.largest)),
                           s.plan, 400);
      map.low = 0.0, map.high = high;
      map.row_sums = map.column_sums = true;
      map.row_reference = 1.0, map.column_reference = column_target();
      frames.push_back(
          {half_step_name(k),
           {heat_map(map)},
           fmt::format("Rows off by {}, columns by {} (relative to {}). Mean entropy of a row {} nats: as if {} of {} entries were equal.",
                       short_number(s.row_error), short_number(s.column_error), format_number(column_target()), format_number(s.entropy),
                       format_number(std::exp(s.entropy)), i_.columns.size())});
    }
    page_.frames("Half-step", frames);
    std::vector<std::vector<std::string>> rows;
    for (size_t k : drawn_steps(i_.steps.size())) {
      const InspectedStep& s = i_.steps[k];
      rows.push_back({half_step_name(k), format_number(s.row_error), format_number(s.column_error), format_number(s.dual), format_number(s.entropy),
                      format_number(s.largest)});
    }
    page_.table({"half-step", "rows off", "columns off", "dual value", "mean entropy", "largest entry"}, rows,
                drawn.size() < i_.steps.size()
                    ? fmt::format("The first and the last of {} half-steps; the others are in the JSON and .npz files.", i_.steps.size())
                    : "");
  }

  /// A strip for each half-step that makes such a potential (row steps f, column steps g).
  template <class Part>
  std::string strips(const std::string& title, const std::string& description, bool on_rows, bool diverging, Part part) const {
    HeatMap map{.title = title, .description = description, .rows = 0, .columns = on_rows ? n() : m(), .values = {}, .missing = "excluded"};
    for (size_t k : drawn_steps(i_.steps.size())) {
      if (i_.steps[k].on_rows != on_rows) continue;
      Numbers values(map.columns, kNan);
      for (int64_t line : on_rows ? i_.rows : i_.columns) values[static_cast<size_t>(line)] = part(i_.steps[k])[static_cast<size_t>(line)];
      map.values.insert(map.values.end(), values.begin(), values.end());
      map.row_labels.push_back(half_step_name(k));
      ++map.rows;
    }
    if (map.rows == 0) return "";
    map.column_axis = on_rows ? source_.row_name : source_.column_name;
    map.diverging = diverging;
    map.row_height = 20;
    map.picture = map.columns > 32;
    return heat_map(map);
  }
  void add_strips(const std::vector<std::string>& charts, const std::string& caption) {
    std::vector<std::string> present;
    for (const std::string& chart : charts)
      if (!chart.empty()) present.push_back(chart);
    page_.figure(present, caption);
  }

  void potentials() {
    page_.section("Potentials");
    using Step = const InspectedStep&;
    add_strips(
        {strips("Row potentials f", "one strip for each row step: what is added to the scores of each row", true, false, [](Step s) { return s.f; }),
         strips("Column potentials g", "one strip for each column step: what is added to the scores of each column", false, true,
                [](Step s) { return s.g; })},
        "P = exp(C + f + g). A row step makes f anew and keeps g, a column step the other way round.");
  }

  void convergence() {
    page_.section("Convergence");
    const InspectedConvergence& c = i_.convergence;
    Series columns{.label = "columns, after row steps", .x = {}, .y = {}}, rows{.label = "rows, after column steps", .x = {}, .y = {}},
        predicted{.label = "predicted: times \u03c3\u2082(P)\u00b2 per pair", .x = {}, .y = {}, .dashed = true, .color = 6};
    size_t anchor = 0;  // the last error that is no rounding
    for (size_t k = 0; k < c.column_error.size(); ++k) {
      Series& series = k % 2 == 0 ? columns : rows;
      series.x.push_back(static_cast<double>(k + 1));
      series.y.push_back(k % 2 == 0 ? c.column_error[k] : c.row_error[k]);
      if (k % 2 == 0 && c.column_error[k] > 1e-11) anchor = k;
    }
    for (size_t k = 0; k < c.column_error.size() && rate() > 0; k += 2) {
      predicted.x.push_back(static_cast<double>(k + 1));
      predicted.y.push_back(std::max(1e-16, c.column_error[anchor] * std::pow(rate(), (static_cast<double>(k) - static_cast<double>(anchor)) / 2)));
    }
    LineChart errors{.title = "Marginal error",
                     .description = fmt::format("the error falls from {} to {} over {} half-steps; predicted rate {} per pair",
                                                format_number(c.column_error.front()), format_number(columns.y.back()), c.column_error.size(),
                                                format_number(rate())),
                     .x_label = "half-steps",
                     .y_label = "largest deviation of a sum",
                     .series = {columns, rows, predicted},
                     .log_y = true,
                     .x_integers = true,
                     .width = kChartWidth};
    Series gap{.label = "limit \u2212 dual value", .x = {}, .y = {}, .color = 2};
    for (size_t k = 0; k < c.dual.size(); ++k)
      if (const double distance = i_.limit.dual - c.dual[k]; distance > 1e-13 * std::max(1.0, std::abs(i_.limit.dual))) {
        gap.x.push_back(static_cast<double>(k + 1));
        gap.y.push_back(distance);
      }
    std::vector<std::string> charts = {line_chart(errors)};
    if (!gap.x.empty())
      charts.push_back(line_chart({.title = "Dual value: distance from its limit",
                                   .description = "the dual value grows with every half-step: each maximises it over one of the two potentials",
                                   .x_label = "half-steps",
                                   .y_label = "distance",
                                   .series = {gap},
                                   .log_y = true,
                                   .x_integers = true,
                                   .width = kChartWidth}));
    page_.figure(
        charts,
        fmt::format("\u03c3\u2082(P) = {}, the second singular value of the limit plan scaled to unit marginals{}.", format_number(i_.limit.sigma2),
                    i_.limit.converged ? fmt::format(" (reached after {} half-steps)", i_.limit.half_steps)
                                       : fmt::format(" (not reached after {} half-steps: the best known plan)", i_.limit.half_steps)));
  }

  void backward() {
    page_.section("Backward: where the gradient comes from");
    page_.paragraph(
        "The gradient walks the half-steps from the last to the first. The exponential P = exp(C + f + g) reads the scores, and so does every "
        "half-step that makes a potential: each adds its own part to dL/dC.");
    double high = largest(i_.direct);
    for (const InspectedStep& s : i_.steps) high = std::max(high, largest(s.contribution));
    std::vector<HtmlFrame> frames;
    const auto part_chart = [&](const std::string& title, const Numbers& values, bool sums) {
      HeatMap map = matrix(title, fmt::format("values from {} to {}", format_number(least(values)), format_number(most(values))), values, 330);
      map.diverging = true;
      map.low = -high, map.high = high;
      map.row_sums = map.column_sums = sums;
      return heat_map(map);
    };
    const auto add = [&](const std::string& place, const std::string& made, const Numbers& part, const Numbers& so_far) {
      frames.push_back({place,
                        {part_chart("Part of " + made, part, false), part_chart("Sum so far", so_far, true)},
                        fmt::format("The part has norm {}, the sum so far {}.", short_number(norm(part)), short_number(norm(so_far)))});
    };
    add("the last exponential", "the last exponential", i_.direct, i_.direct);
    const std::vector<size_t> drawn = drawn_steps(i_.steps.size());
    for (auto k = drawn.rbegin(); k != drawn.rend(); ++k)
      add("half-step " + half_step_name(*k), "half-step " + half_step_name(*k), i_.steps[*k].contribution,
          i_.contributions_from(static_cast<int>(*k) + 1));
    page_.frames("Backward through", frames);

    Series parts{.label = "norm of the part of each half-step", .x = {}, .y = {}},
        cotangents{.label = "norm of the cotangent of its potential", .x = {}, .y = {}, .dashed = true, .color = 3};
    for (size_t k = 0; k < i_.steps.size(); ++k) {
      const InspectedStep& s = i_.steps[k];
      for (Series* series : {&parts, &cotangents}) series->x.push_back(static_cast<double>(k + 1));
      parts.y.push_back(norm(s.contribution));
      cotangents.y.push_back(norm(s.on_rows ? s.f_cotangent : s.g_cotangent));
    }
    page_.figure({line_chart({.title = "How far back the gradient reaches",
                              .description = fmt::format("from half-step {} back to half-step 1 the norm of the part goes from {} to {}",
                                                         i_.half_steps, format_number(parts.y.back()), format_number(parts.y.front())),
                              .x_label = "half-step",
                              .y_label = "norm",
                              .series = {parts, cotangents},
                              .references = {{norm(i_.direct), "part of the last exponential"}},
                              .log_y = true,
                              .x_integers = true,
                              .width = kChartWidth})},
                 "Read from the right: the gradient enters at the last half-step and walks to the first.");
    using Step = const InspectedStep&;
    add_strips({strips("Cotangents of the row potentials", "dL/df for each row step", true, true, [](Step s) { return s.f_cotangent; }),
                strips("Cotangents of the column potentials", "dL/dg for each column step", false, true, [](Step s) { return s.g_cotangent; })},
               "What reaches each potential on the way back.");
  }

  void gradient() {
    page_.section("The gradient and its invariances");
    HeatMap total = matrix("dL/dC", "the unrolled gradient of the fused operator", i_.gradient, 330),
            limit = matrix("dL/dC at the fixed point", "the implicit gradient at the limit plan", i_.limit.gradient, 330);
    for (HeatMap* map : {&total, &limit}) {
      map->diverging = map->row_sums = map->column_sums = true;
      map->row_reference = map->column_reference = 0.0;
    }
    page_.figure({heat_map(total), heat_map(limit)},
                 "Adding a constant to a row of the scores never changes the plan, so rows of the gradient sum to 0 after every odd number of "
                 "half-steps. Columns do so in the limit only (Proposition 1 of the paper).");
  }

  void jacobian() {
    page_.section("Jacobian of the plan");
    if (i_.jacobians.empty()) {
      page_.paragraph(fmt::format("Shown for at most 400 entries; there are {}.", i_.rows.size() * i_.columns.size()));
      return;
    }
    LineChart chart{.title = "Singular values of dP/dC",
                    .description = "largest first, for softmax, the half-steps taken and the limit",
                    .x_label = "number",
                    .y_label = "singular value",
                    .log_y = true,
                    .x_integers = true,
                    .width = kChartWidth};
    std::vector<std::vector<std::string>> rows;
    for (const InspectedJacobian& j : i_.jacobians) {
      Series series{.label = j.name, .x = {}, .y = {}};
      for (size_t k = 0; k < static_cast<size_t>(j.rank); ++k) {
        series.x.push_back(static_cast<double>(k + 1));
        series.y.push_back(j.singular_values[k]);
      }
      chart.series.push_back(series);
      rows.push_back(
          {j.name, std::to_string(j.rank), std::to_string(j.theory_rank), format_number(j.singular_values.front()), format_number(j.asymmetry)});
    }
    page_.figure({line_chart(chart)}, "Singular values below 1e-12 of the largest are not drawn.");
    page_.table({"after", "rank", "rank in theory", "largest", "asymmetry"}, rows,
                "Asymmetry: the largest |J \u2212 J\u1d40| over the largest |J|. In the limit J is the Hessian of the regularised optimum, hence "
                "symmetric, of rank (n\u22121)(m\u22121).");
  }

  void modes() {
    page_.section("Four ways to differentiate");
    std::vector<std::vector<std::string>> rows;
    BarChart bytes{.title = "Bytes kept for the backward pass",
                   .description = "by each way to differentiate",
                   .categories = {"step by step"},
                   .width = kChartWidth};
    bytes.series = {{.label = "", .x = {}, .y = {static_cast<double>(i_.step_by_step_bytes)}}};
    for (const InspectedMode& mode : i_.modes) {
      const std::string name = mode.name == "finite_differences" ? "finite differences" : mode.name;
      const bool computed = !mode.gradient.empty();
      rows.push_back({name, computed ? format_number(mode.difference) : "", computed ? fmt::format("{:.6f}", mode.cosine) : "",
                      std::to_string(mode.bytes_kept), mode.note});
      if (mode.bytes_kept == 0) continue;
      bytes.categories.push_back(name);
      bytes.series[0].y.push_back(static_cast<double>(mode.bytes_kept));
    }
    page_.table({"dL/dC", "difference", "cosine", "bytes kept", "note"}, rows,
                "Difference from the unrolled gradient, relative to its largest entry. Bytes besides scores and plan.");
    const InspectedConvergence& c = i_.convergence;
    const Numbers x(c.odd.begin(), c.odd.end());
    page_.figure(
        {line_chart({.title = "Shortcuts against the unrolled gradient",
                     .description = "relative difference over half-steps: implicit vanishes, frozen does not",
                     .x_label = "half-steps",
                     .y_label = "relative difference",
                     .series = {{.label = "implicit", .x = x, .y = c.implicit_difference}, {.label = "frozen", .x = x, .y = c.frozen_difference}},
                     .log_y = true,
                     .x_integers = true,
                     .width = kChartWidth}),
         bar_chart(bytes)},
        "The implicit gradient becomes exact at the fixed point. The frozen one (column potentials held constant) does not. The fused "
        "operator keeps potentials only and computes plans again; a tape of single steps keeps matrices.");
  }

  void glossary() {
    page_.section("Glossary");
    page_.table(
        {"", "meaning"},
        {{"C, P, W", "scores (n \u00d7 m), plan P = exp(C + f + g), cotangent W = dL/dP"},
         {"row step", "f\u1d62 \u2190 \u2212log \u03a3\u2c7c exp(C\u1d62\u2c7c + g\u2c7c): every row of P sums to 1; with g = 0 this is softmax"},
         {"column step", "g\u2c7c \u2190 log(n/m) \u2212 log \u03a3\u1d62 exp(C\u1d62\u2c7c + f\u1d62): every column of P sums to n/m"},
         {"off by", "the largest |row sum \u2212 1| or |column sum \u00b7 m/n \u2212 1|"},
         {"dual value",
          "\u03a3\u1d62 f\u1d62 + (n/m) \u03a3\u2c7c g\u2c7c \u2212 (\u03a3 P \u2212 n): every half-step maximises it over one of its potentials"},
         {"part of a half-step",
          "what dL/dC gets through the scores that this half-step reads: \u2212P\u1d62\u2c7c f\u0304\u1d62 for a row step, "
          "\u2212P\u1d62\u2c7c g\u0304\u2c7c m/n for a column step, with the cotangents f\u0304, g\u0304 of the potentials"},
         {"\u03c3\u2082(P)", "second singular value of the limit plan scaled to unit marginals; two half-steps multiply the error by its square"},
         {"unrolled", "exact derivative of the half-steps that were taken"},
         {"implicit", "derivative of the fixed point, from a linear system at the present plan"},
         {"frozen", "derivative with the column potentials held constant; not the true gradient"}});
  }

  static double least(const Numbers& v) {
    double low = HUGE_VAL;
    for (double x : v) low = std::min(low, std::isnan(x) ? HUGE_VAL : x);
    return low;
  }
  static double most(const Numbers& v) {
    double high = -HUGE_VAL;
    for (double x : v) high = std::max(high, std::isnan(x) ? -HUGE_VAL : x);
    return high;
  }

  const Inspection& i_;
  const InspectionSource& source_;
  HtmlPage page_;
};

}  // namespace

std::string inspection_page(const Inspection& inspection, const InspectionSource& source, const std::string& subtitle) {
  return InspectionPage(inspection, source, subtitle).str();
}

}  // namespace sinkgrad
