// `sinkgrad plot`: learning curves of one or more runs as an SVG chart or an HTML page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "core/check.h"
#include "core/names.h"
#include "tools/commands.h"
#include "tools/figure.h"
#include "tools/ui/attention_curves.h"
#include "tools/ui/curves.h"
#include "tools/ui/html.h"

namespace sinkgrad {
namespace {

struct PlotOptions {
  std::vector<std::string> runs, metrics;
  std::string out = "curves.svg", split = "both", axis = "epoch";
  bool group_seeds = false, logarithmic = false, attention = false;
};

/// "accuracy" is written "acc" in metrics.jsonl.
std::string metric_in_file(const std::string& name, const std::vector<std::string>& known) {
  const auto has = [&](const std::string& candidate) { return std::count(known.begin(), known.end(), candidate) > 0; };
  if (has(name)) return name;
  if (name == "accuracy" && has("acc")) return "acc";
  std::string list;
  for (const std::string& each : known) list += (list.empty() ? "" : ", ") + each;
  throw InputError(cat("plot: no run has measured '", name, "'", did_you_mean(name, known), known.empty() ? "" : "; there are ", list));
}

/// The best and the last value of a curve; the best is the least loss and the greatest of anything else.
std::vector<std::string> summary(const Curve& curve, bool least) {
  size_t best = curve.x.size();
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (!std::isfinite(curve.median[i])) continue;
    const bool better = best == curve.x.size() || (least ? curve.median[i] < curve.median[best] : curve.median[i] > curve.median[best]);
    if (better) best = i;
  }
  if (best == curve.x.size()) return {"", "", "NaN"};
  return {format_number(curve.median[best]), format_number(curve.x[best]), format_number(curve.median.back())};
}

std::string page(const PlotOptions& options, const std::vector<RunGroup>& groups, const std::vector<std::string>& splits, CurveAxis axis) {
  HtmlPage page("Learning curves", fmt::format("sinkgrad plot, {} {}", options.runs.size(), options.runs.size() == 1 ? "path" : "paths"));
  std::vector<std::string> charts;
  for (const std::string& metric : options.metrics) {
    LineChart chart = learning_curves(groups, metric, splits, axis, options.logarithmic);
    chart.width = 640;  // two beside each other
    charts.push_back(line_chart(chart));
  }
  page.figure(charts);
  for (const std::string& metric : options.metrics) {
    const bool least = metric.find("loss") != std::string::npos || metric == "ppl";
    std::vector<std::vector<std::string>> rows;
    for (const RunGroup& group : groups) {
      for (const std::string& split : splits) {
        const Curve curve = learning_curve(group, metric, split, axis);
        if (curve.x.empty()) continue;
        std::vector<std::string> row = {group.label, std::to_string(group.runs.size()), split};
        for (std::string& cell : summary(curve, least)) row.push_back(std::move(cell));
        row.push_back(curve.nonfinite ? std::to_string(curve.nonfinite) : "");
        rows.push_back(std::move(row));
      }
    }
    page.table({"run", "seeds", "split", least ? "least" : "greatest", "at " + options.axis, "last", "not finite"}, rows,
               metric + (options.group_seeds ? " (median over seeds)" : ""));
  }
  if (options.attention) {
    page.section("Attention");
    page.paragraph("Of 16 test items, layers and heads counted from 0. A column sum is what a key gets of all queries, 1 being its fair share.");
    for (const AttentionCharts& layer : attention_charts(groups, axis)) page.figure(layer.charts);
  }
  page.section("Configurations");
  for (const RunGroup& group : groups) page.code(group.runs[0]->config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace), group.label);
  return page.str();
}

void plot(PlotOptions options) {
  const FigureFile figure("plot", options.out);
  const bool html = figure.is_page();
  const std::vector<Run> runs = load_runs(options.runs);
  const std::vector<RunGroup> groups = group_runs(runs, options.group_seeds);
  const std::vector<std::string> known = metric_names(runs);
  if (options.metrics.empty()) options.metrics = {"loss"};
  if (html && options.metrics == std::vector<std::string>{"loss"} && std::count(known.begin(), known.end(), "acc")) options.metrics.push_back("acc");
  for (std::string& metric : options.metrics) metric = metric_in_file(metric, known);
  require<InputError>(html || !options.attention, "plot: --attention draws several charts and requires a name that ends in .html, got '", options.out,
                      "'");
  require<InputError>(html || options.metrics.size() == 1, "plot: an .svg file holds one metric, ", options.metrics.size(),
                      " were asked for; use --out NAME.html");
  const std::vector<std::string> splits =
      options.split == "both" ? std::vector<std::string>{"train", "test"} : std::vector<std::string>{options.split};
  const CurveAxis axis = options.axis == "epoch" ? CurveAxis::epoch : CurveAxis::step;
  figure.write(html ? page(options, groups, splits, axis)
                    : line_chart(learning_curves(groups, options.metrics[0], splits, axis, options.logarithmic)));
  fmt::print("{}: {} {} in {} {}\n", options.out, runs.size(), runs.size() == 1 ? "run" : "runs", groups.size(),
             groups.size() == 1 ? "group" : "groups");
}

}  // namespace

void add_plot(CLI::App& app) {
  const auto options = std::make_shared<PlotOptions>();
  CLI::App* command = app.add_subcommand("plot", "Draw learning curves of one or more runs");
  command->footer("Example: sinkgrad plot runs/softmax-* runs/sinkhorn-* --group-seeds --metric accuracy --split test --out accuracy.svg");
  command->add_option("runs", options->runs, "run folders, folders of run folders, or metrics.jsonl files")->required();
  command->add_option("-o,--out", options->out, "what to write, ending in .svg or .html")->capture_default_str();
  command->add_option("-m,--metric", options->metrics,
                      "loss, accuracy or any other name in metrics.jsonl; repeatable in .html [loss; in .html loss and accuracy]");
  command->add_option("--split", options->split, "train, test, both, or attention for single numbers of --attention-every")
      ->check(CLI::IsMember({"train", "test", "both", "attention"}))
      ->capture_default_str();
  command->add_option("--x", options->axis, "epoch or step")->check(CLI::IsMember({"epoch", "step"}))->capture_default_str();
  command->add_flag("--group-seeds", options->group_seeds, "join runs that differ only in the seed: median, and a band from least to greatest");
  command->add_flag("--attention", options->attention,
                    "also column sums, marginal error and entropy of every layer and head, from runs trained with --attention-every; .html only");
  command->add_flag("--log", options->logarithmic, "logarithmic value axis");
  command->callback([options] { plot(*options); });
}

}  // namespace sinkgrad
