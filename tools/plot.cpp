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
  bool attention = false;
  for (const std::string& each : known) each.starts_with("attention.") ? void(attention = true) : void(list += (list.empty() ? "" : ", ") + each);
  if (attention) list += ", attention.LAYER.HEAD.NAME";
  throw InputError(cat("plot: no run has measured '", name, "'", did_you_mean(name, known), known.empty() ? "" : "; there are ", list));
}

/// The best (the least loss, the greatest of anything else) and the last value of a curve; NaN where it has no finite one.
struct Summary {
  double best = NAN, at = NAN, last = NAN, low = NAN, high = NAN;  ///< low and high: over seeds, of the last

  Summary(const Curve& curve, bool least) {
    for (size_t i = 0; i < curve.x.size(); ++i) {
      const double value = curve.median[i];
      if (!std::isfinite(value) || (least ? value >= best : value <= best)) continue;
      best = value, at = curve.x[i];
    }
    last = curve.median.back(), low = curve.low.back(), high = curve.high.back();
  }
};

/// "" for NaN: nothing was measured.
std::string cell(double value) { return std::isnan(value) ? "" : format_number(value); }

/// A row per group and split; of two groups also how far the second is from the first.
std::vector<std::vector<std::string>> table_rows(const std::vector<RunGroup>& groups, const std::vector<std::string>& splits,
                                                 const std::string& metric, CurveAxis axis, bool least) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& split : splits) {
    std::vector<Summary> summaries;
    for (const RunGroup& group : groups) {
      const Curve curve = learning_curve(group, metric, split, axis);
      if (curve.x.empty()) continue;
      const Summary s(curve, least);
      summaries.push_back(s);
      const std::string range = group.runs.size() > 1 ? fmt::format(" ({} to {})", format_number(s.low), format_number(s.high)) : "";
      rows.push_back({group.label, std::to_string(group.runs.size()), split, cell(s.best), cell(s.at), format_number(s.last) + range,
                      curve.nonfinite ? std::to_string(curve.nonfinite) : ""});
    }
    if (groups.size() == 2 && summaries.size() == 2)
      rows.push_back(
          {"second \u2212 first", "", split, cell(summaries[1].best - summaries[0].best), "", cell(summaries[1].last - summaries[0].last), ""});
  }
  return rows;
}

std::string page(const PlotOptions& options, const std::vector<RunGroup>& groups, const std::vector<std::string>& splits, CurveAxis axis) {
  HtmlPage page("Learning curves", fmt::format("sinkgrad plot, {} {}", options.runs.size(), options.runs.size() == 1 ? "path" : "paths"));
  std::vector<std::string> charts;
  for (const std::string& metric : options.metrics) {
    LineChart chart = learning_curves(groups, metric, splits, axis, options.logarithmic);
    chart.width = 600;  // two beside each other
    charts.push_back(line_chart(chart));
  }
  page.figure(charts);
  for (const std::string& metric : options.metrics) {
    const bool least = metric.find("loss") != std::string::npos || metric == "ppl";
    page.table({"run", "seeds", "split", least ? "least" : "greatest", "at " + options.axis, "last", "not finite"},
               table_rows(groups, splits, metric, axis, least),
               (metric == "acc" ? "accuracy" : metric) + (options.group_seeds ? " (median over seeds; least to greatest)" : ""));
  }
  if (options.attention) {
    page.section("Attention");
    page.paragraph("Of 16 test items, layers and heads counted from 0. A column sum is what a key gets of all queries, 1 being its fair share.");
    for (const AttentionCharts& layer : attention_charts(groups, axis)) page.figure(layer.charts);
  }
  page.section("Configurations");
  if (const auto options_that_differ = differing_options(groups); !options_that_differ.empty()) {
    std::vector<std::string> columns = {"option"};
    for (const RunGroup& group : groups) columns.push_back(group.label);
    page.table(columns, options_that_differ, "What differs.");
  }
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
