// Learning curves: runs read from their metrics.jsonl, runs that differ only in the seed joined, drawn as a line chart.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/ui/metrics.h"
#include "tools/ui/svg.h"

namespace sinkgrad {

struct Run {
  std::filesystem::path path;    // of metrics.jsonl
  nlohmann::json config;         // the recipe as it ran; null when the header has none
  std::vector<MetricsRow> rows;  // in the order of steps; of rows with equal step and split the last counts
};

/// Each path is a metrics file, a run folder, or a folder of run folders. InputError or IoError when there is nothing to read.
std::vector<Run> load_runs(const std::vector<std::string>& paths);

/// Runs drawn as one curve: one run, or all that differ only in the seed.
struct RunGroup {
  std::string label;  // the recipe's name, with the options that tell it from others of that name
  std::vector<const Run*> runs;
};

/// `runs` must outlive the groups.
std::vector<RunGroup> group_runs(const std::vector<Run>& runs, bool join_seeds);

/// A row for each option of the recipes that is not the same in all groups (of the seed only where each is one run): its name, then its value in each
/// group ("" where it has none).
std::vector<std::vector<std::string>> differing_options(const std::vector<RunGroup>& groups);

/// What a group measured at the values of x: median, least and greatest over its runs. NaN where no run was finite.
struct Curve {
  std::vector<double> x, median, low, high;
  size_t nonfinite = 0;   // measurements that were NaN or infinite
  bool averaged = false;  // neighbouring records were averaged because there are too many to draw
};

enum class CurveAxis { epoch, step };

/// Several metrics, such as those of all heads, are joined like several runs.
Curve learning_curve(const RunGroup& group, const std::vector<std::string>& metrics, const std::string& split, CurveAxis axis);
inline Curve learning_curve(const RunGroup& group, const std::string& metric, const std::string& split, CurveAxis axis) {
  return learning_curve(group, std::vector{metric}, split, axis);
}

/// The names of the measured values, sorted.
std::vector<std::string> metric_names(const std::vector<Run>& runs);

/// One chart of `metric` with a curve per group and split: training dashed, testing solid. InputError when nothing was measured under that name.
LineChart learning_curves(const std::vector<RunGroup>& groups, const std::string& metric, const std::vector<std::string>& splits, CurveAxis axis,
                          bool logarithmic);

}  // namespace sinkgrad
