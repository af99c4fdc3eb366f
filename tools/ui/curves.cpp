// Values of several runs are joined where their x is equal, which holds for runs of one recipe.
#include "tools/ui/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "core/check.h"
#include "core/names.h"
#include "tools/ui/spread.h"

namespace sinkgrad {
namespace {

using Json = nlohmann::json;
constexpr const char* kFileName = "metrics.jsonl";

Run load_run(const std::filesystem::path& path) {
  MetricsFile file = read_metrics(path);
  Run run{path, file.header.value("config", Json()), {}};
  std::map<std::pair<int64_t, std::string>, MetricsRow> unique;
  for (MetricsRow& row : file.rows) unique.insert_or_assign({row.step, row.split}, std::move(row));
  for (auto& [key, row] : unique) run.rows.push_back(std::move(row));
  return run;
}

std::vector<std::filesystem::path> metrics_files(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  if (std::filesystem::exists(path / kFileName)) return {path / kFileName};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (std::filesystem::exists(entry.path() / kFileName)) files.push_back(entry.path() / kFileName);
  require<InputError>(!files.empty(), path.string(), ": requires a run folder with ", kFileName, " or a folder of such folders");
  std::sort(files.begin(), files.end());
  return files;
}

Json without_seed(Json config) {
  if (config.is_object()) config.erase("seed");
  return config;
}

std::string name_of(const Run& run) {
  if (run.config.is_object() && run.config.value("name", Json()).is_string()) return run.config["name"];
  return run.path.filename() == kFileName ? std::filesystem::absolute(run.path).parent_path().filename().string() : run.path.stem().string();
}

/// "model.iterations" -> value, for everything but name and description.
std::map<std::string, std::string> options_of(const Json& config, bool with_seed) {
  std::map<std::string, std::string> options;
  if (!config.is_object()) return options;
  const Json flat = config.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    if (pointer == "/name" || pointer == "/description" || (!with_seed && pointer == "/seed")) continue;
    std::string path = pointer.substr(1);
    std::replace(path.begin(), path.end(), '/', '.');
    options[path] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return options;
}

/// Names shared by several groups get the options that differ among them; what is still equal gets its path.
void label_groups(std::vector<RunGroup>& groups, bool join_seeds) {
  std::map<std::string, std::vector<RunGroup*>> by_name;
  for (RunGroup& group : groups) by_name[name_of(*group.runs[0])].push_back(&group);
  for (const auto& [name, same] : by_name) {
    std::map<std::string, std::set<std::string>> values;
    std::vector<std::map<std::string, std::string>> options;
    for (const RunGroup* group : same) {
      options.push_back(options_of(group->runs[0]->config, !join_seeds));
      for (const auto& [path, value] : options.back()) values[path].insert(value);
    }
    for (size_t i = 0; i < same.size(); ++i) {
      same[i]->label = name;
      int shown = 0;
      for (const auto& [path, distinct] : values) {
        const auto value = options[i].find(path);
        const bool differs =
            distinct.size() > 1 || std::any_of(options.begin(), options.end(), [&, key = &path](const auto& o) { return !o.contains(*key); });
        if (differs && value != options[i].end() && shown++ < 3)
          same[i]->label += fmt::format(", {} {}", path.substr(path.rfind('.') + 1), value->second);
      }
    }
  }
  std::map<std::string, int> uses;
  for (const RunGroup& group : groups) ++uses[group.label];
  for (RunGroup& group : groups)
    if (uses[group.label] > 1) group.label += ", " + group.runs[0]->path.string();
}

double mean(const std::vector<double>& values, size_t begin, size_t end) {
  double sum = 0;
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) {
    if (!std::isfinite(values[i])) continue;
    sum += values[i];
    ++count;
  }
  return count ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
}

/// Averages neighbours until the curve has at most `kMostPoints`, about one per pixel.
void thin_out(Curve& curve) {
  constexpr size_t kMostPoints = 600;
  const size_t count = curve.x.size(), block = (count + kMostPoints - 1) / kMostPoints;
  if (block <= 1) return;
  curve.averaged = true;
  for (auto* values : {&curve.x, &curve.median, &curve.low, &curve.high}) {
    std::vector<double> means;
    for (size_t begin = 0; begin < count; begin += block) means.push_back(mean(*values, begin, std::min(begin + block, count)));
    *values = std::move(means);
  }
}

}  // namespace

std::vector<Run> load_runs(const std::vector<std::string>& paths) {
  std::vector<Run> runs;
  for (const std::string& path : paths)
    for (const std::filesystem::path& file : metrics_files(path)) runs.push_back(load_run(file));
  return runs;
}

std::vector<RunGroup> group_runs(const std::vector<Run>& runs, bool join_seeds) {
  std::vector<RunGroup> groups;
  for (const Run& run : runs) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const RunGroup& group) {
      return join_seeds && run.config.is_object() && without_seed(group.runs[0]->config) == without_seed(run.config);
    });
    same == groups.end() ? groups.push_back({"", {&run}}) : same->runs.push_back(&run);
  }
  label_groups(groups, join_seeds);
  return groups;
}

std::vector<std::vector<std::string>> differing_options(const std::vector<RunGroup>& groups) {
  const bool each_alone = std::ranges::all_of(groups, [](const RunGroup& group) { return group.runs.size() == 1; });
  std::map<std::string, std::vector<std::string>> values;
  for (size_t g = 0; g < groups.size(); ++g)
    for (const auto& [name, value] : options_of(groups[g].runs[0]->config, each_alone)) {
      values[name].resize(groups.size());
      values[name][g] = value;
    }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, by_group] : values) {
    if (std::ranges::adjacent_find(by_group, std::ranges::not_equal_to()) == by_group.end()) continue;
    rows.push_back({name});
    rows.back().insert(rows.back().end(), by_group.begin(), by_group.end());
  }
  return rows;
}

Curve learning_curve(const RunGroup& group, const std::vector<std::string>& metrics, const std::string& split, CurveAxis axis) {
  Curve curve;
  std::map<double, std::vector<double>> measured;  // x -> finite values
  for (const Run* run : group.runs) {
    for (const MetricsRow& row : run->rows) {
      for (const std::string& metric : metrics) {
        if (row.split != split || !row.has(metric)) continue;
        std::vector<double>& values = measured[axis == CurveAxis::epoch ? row.epoch : static_cast<double>(row.step)];
        const double value = row.value(metric);
        std::isfinite(value) ? values.push_back(value) : void(++curve.nonfinite);
      }
    }
  }
  for (const auto& [x, values] : measured) {
    const Spread spread(values);
    curve.x.push_back(x);
    curve.median.push_back(spread.median);
    curve.low.push_back(spread.least);
    curve.high.push_back(spread.greatest);
  }
  thin_out(curve);
  return curve;
}

std::vector<std::string> metric_names(const std::vector<Run>& runs) {
  std::set<std::string> names;
  for (const Run& run : runs)
    for (const MetricsRow& row : run.rows)
      for (const auto& [name, value] : row.values) names.insert(name);
  return {names.begin(), names.end()};
}

LineChart learning_curves(const std::vector<RunGroup>& groups, const std::string& metric, const std::vector<std::string>& splits, CurveAxis axis,
                          bool logarithmic) {
  LineChart chart;
  const std::string name = metric == "acc" ? "accuracy" : metric;
  chart.title = splits.size() == 1 ? fmt::format("{} {}",
                                                 splits[0] == "train"  ? "Training"
                                                 : splits[0] == "test" ? "Test"
                                                                       : splits[0],
                                                 name)
                                   : "Learning curves: " + name;
  chart.x_label = axis == CurveAxis::epoch ? "epoch" : "update";
  chart.y_label = name;
  chart.log_y = logarithmic;
  chart.x_integers = true;
  size_t nonfinite = 0, most_runs = 1;
  bool averaged = false;
  std::set<std::string> drawn;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const std::string& split : splits) {
      Curve curve = learning_curve(groups[i], metric, split, axis);
      if (curve.x.empty()) continue;
      drawn.insert(split);
      nonfinite += curve.nonfinite;
      averaged |= curve.averaged;
      Series series{.label = groups[i].label, .x = std::move(curve.x), .y = std::move(curve.median)};
      if (splits.size() > 1) series.label = groups.size() == 1 ? split : series.label + ", " + split;
      series.dashed = split == "train" && splits.size() > 1;
      // Two curves of one run share a colour; alone each takes the next one.
      if (splits.size() > 1) series.color = static_cast<int>(i);
      const size_t runs = groups[i].runs.size();
      if (runs > 1) {
        if (!series.dashed) {  // bands of both splits would hide each other
          series.low = std::move(curve.low);
          series.high = std::move(curve.high);
        }
        series.label += fmt::format(" ({} seeds)", runs);
        most_runs = std::max(most_runs, runs);
      }
      chart.series.push_back(std::move(series));
    }
  }
  const bool untested = splits == std::vector<std::string>{"test"} && std::ranges::none_of(groups, [](const RunGroup& group) {
                          return std::ranges::any_of(group.runs, [](const Run* run) {
                            return std::ranges::any_of(run->rows, [](const MetricsRow& row) { return row.split == "test"; });
                          });
                        });
  require<InputError>(!chart.series.empty(), "plot: no run has measured '", metric, "' on the split asked for",
                      untested ? "; that is done after each whole epoch, before the first `sinkgrad eval` tells it of last.safetensors" : "");
  if (most_runs > 1) chart.note += fmt::format("Line: median over seeds; band: least to greatest{}. ", splits.size() > 1 ? ", of solid lines" : "");
  if (averaged) chart.note += "Neighbouring records are averaged. ";
  if (nonfinite > 0) chart.note += fmt::format("{} measured {} not finite. ", nonfinite, nonfinite == 1 ? "value is" : "values are");
  chart.description = fmt::format("{} by {} for", name, chart.x_label);
  for (const Series& series : chart.series) {
    const auto last = std::find_if(series.y.rbegin(), series.y.rend(), [](double y) { return std::isfinite(y); });
    chart.description += fmt::format(" {}: ends at {};", series.label, last == series.y.rend() ? "NaN" : format_number(*last));
  }
  return chart;
}

}  // namespace sinkgrad
