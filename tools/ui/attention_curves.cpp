// Names in metrics.jsonl are "attention.LAYER.HEAD.quantity", rows have the split "attention".
#include "tools/ui/attention_curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/check.h"

namespace sinkgrad {
namespace {

/// Layer -> number of heads, from what the runs have measured.
std::map<int, int> heads_of_layers(const std::vector<RunGroup>& groups) {
  std::map<int, int> heads;
  for (const RunGroup& group : groups)
    for (const Run* run : group.runs)
      for (const MetricsRow& row : run->rows)
        for (const auto& [name, value] : row.values) {
          constexpr std::string_view kPrefix = "attention.";
          if (row.split != "attention" || !name.starts_with(kPrefix)) continue;
          int layer = 0, head = 0;
          const char* end = name.data() + name.size();
          const auto [dot, bad_layer] = std::from_chars(name.data() + kPrefix.size(), end, layer);
          if (bad_layer != std::errc() || dot == end || *dot != '.') continue;
          if (std::from_chars(dot + 1, end, head).ec != std::errc()) continue;
          heads[layer] = std::max(heads[layer], head + 1);
        }
  return heads;
}

struct Quantity {
  std::vector<const char*> names;  ///< drawn together; the second dashed
  const char *title, *label;
  bool logarithmic;
  std::vector<ReferenceLine> references;
};

std::string chart_of(const std::vector<RunGroup>& groups, int layer, int heads, const Quantity& quantity, CurveAxis axis) {
  LineChart chart{.title = fmt::format("Layer {}: {}", layer, quantity.title),
                  .description = fmt::format("{} of layer {} over training", quantity.title, layer),
                  .x_label = axis == CurveAxis::epoch ? "epoch" : "update",
                  .y_label = quantity.label,
                  .references = quantity.references,
                  .log_y = quantity.logarithmic,
                  .x_integers = true,
                  .width = 400,
                  .height = 300};
  const auto add = [&](const RunGroup& group, int first_head, int end_head, const std::string& label, int color, size_t name, bool band) {
    std::vector<std::string> metrics;
    for (int head = first_head; head < end_head; ++head) metrics.push_back(fmt::format("attention.{}.{}.{}", layer, head, quantity.names[name]));
    Curve curve = learning_curve(group, metrics, "attention", axis);
    if (curve.x.empty()) return;
    Series series{.label = name == 0 ? label : "", .x = std::move(curve.x), .y = std::move(curve.median), .dashed = name == 1, .color = color};
    if (band) {
      series.low = std::move(curve.low);
      series.high = std::move(curve.high);
    }
    chart.series.push_back(std::move(series));
  };
  const bool several = groups.size() > 1;
  for (size_t name = 0; name < quantity.names.size(); ++name) {
    if (several)
      for (size_t g = 0; g < groups.size(); ++g) {
        const size_t seeds = groups[g].runs.size();
        add(groups[g], 0, heads, groups[g].label + (seeds > 1 ? fmt::format(" ({} seeds)", seeds) : ""), static_cast<int>(g), name, true);
      }
    else
      for (int head = 0; head < heads; ++head) add(groups[0], head, head + 1, fmt::format("head {}", head), head, name, groups[0].runs.size() > 1);
  }
  size_t seeds = 1;
  for (const RunGroup& group : groups) seeds = std::max(seeds, group.runs.size());
  if (seeds > 1 || (several && heads > 1))
    chart.note += fmt::format("Median over {}{}{}; band: least to greatest.", several && heads > 1 ? "heads" : "",
                              several && heads > 1 && seeds > 1 ? " and " : "", seeds > 1 ? "seeds" : "");
  return line_chart(chart);
}

}  // namespace

std::vector<AttentionCharts> attention_charts(const std::vector<RunGroup>& groups, CurveAxis axis) {
  const std::map<int, int> layers = heads_of_layers(groups);
  require<InputError>(!layers.empty(), "plot: no run has watched its attention; train with --attention-every");
  const std::vector<Quantity> quantities = {
      {{"column_max", "column_min"}, "column sums", "greatest (solid) and least (dashed) column sum", true, {{1, "fair share"}}},
      {{"marginal_error"}, "marginal error", "largest error of a sum", true, {}},
      {{"entropy"}, "entropy", "entropy of a query's weights, uniform = 1", false, {}}};
  std::vector<AttentionCharts> result;
  for (const auto& [layer, heads] : layers) {
    result.push_back({layer, {}});
    for (const Quantity& quantity : quantities) result.back().charts.push_back(chart_of(groups, layer, heads, quantity, axis));
  }
  return result;
}

}  // namespace sinkgrad
