// What the numbers mean, in words: for people who will not read the tables.
#include <fmt/format.h>

#include <cmath>

#include "nn/inspect/problem.h"

namespace sinkgrad {
namespace {

std::string percent(double part) { return fmt::format("{:.{}f} %", 100 * part, part < 0.1 ? 1 : 0); }

/// How many more half-steps bring the error down to `goal`, at the rate of the limit.
double needed(const Inspection& i, double error, double goal) {
  return std::ceil(2 * std::log(goal / error) / std::log(i.limit.sigma2 * i.limit.sigma2));
}

void add_marginal_warnings(const Inspection& i, std::vector<std::string>& warnings) {
  const InspectedStep& last = i.last();
  const double error = last.on_rows ? last.column_error : last.row_error;
  const char* lines = last.on_rows ? "columns" : "rows";
  if (i.half_steps == 1 && error > 0.1)
    warnings.push_back(fmt::format("one half-step is softmax: columns are off by {:.2g}, some keys collect more than others", error));
  else if (error > 0.1)
    warnings.push_back(fmt::format("{} still off by {:.2g}: scores too sharp for {} half-steps", lines, error, i.half_steps));
  constexpr double kGoal = 1e-3;
  if (i.half_steps > 1 && i.limit.converged && i.limit.sigma2 > 0 && error > 10 * kGoal)
    warnings.push_back(fmt::format("about {:.0f} more half-steps would bring the {} to within {:g}", needed(i, error, kGoal), lines, kGoal));
  if (!i.limit.converged)
    warnings.push_back(fmt::format("not converged after {} half-steps (columns off by {:.2g}): what is called the limit here is only the best known",
                                   i.limit.half_steps, i.limit.column_error));
  if (!last.on_rows) warnings.push_back("an even number of half-steps ends on columns: rows do not sum to exactly 1");
}

void add_gradient_warnings(const Inspection& i, std::vector<std::string>& warnings) {
  const double gradient = largest(i.gradient), cotangent = largest(i.cotangent);
  if (gradient < 1e-3 * cotangent)
    warnings.push_back(fmt::format("the gradient vanishes: its largest entry is {:.2g} for a cotangent of {:.2g}", gradient, cotangent));
  if (gradient < 1e-10 * cotangent) return;  // rounding has no direction
  const auto mode = [&](const char* name) { return *std::find_if(i.modes.begin(), i.modes.end(), [&](const auto& m) { return m.name == name; }); };
  if (const double off = mode("implicit").difference; off > 0.01 && i.half_steps > 1)
    warnings.push_back(
        fmt::format("the implicit gradient is off by {} of the largest entry: {} half-steps are not at the fixed point", percent(off), i.half_steps));
  if (const double off = mode("frozen").difference; off > 0.01)
    warnings.push_back(fmt::format("the frozen gradient (column potentials held constant) is off by {} of the largest entry", percent(off)));
}

}  // namespace

std::vector<std::string> warnings_of(const Inspection& i) {
  std::vector<std::string> warnings;
  add_marginal_warnings(i, warnings);
  if (i.last().largest > 0.999 && i.columns.size() > 1)
    warnings.push_back(fmt::format("the largest entry is {:.4g}: the plan is close to a permutation there", i.last().largest));
  add_gradient_warnings(i, warnings);
  const auto excluded = [&](int64_t all, size_t kept, const char* what) {
    if (const int64_t gone = all - static_cast<int64_t>(kept); gone > 0)
      warnings.push_back(fmt::format("{} of {} {} excluded: mass and gradient exactly 0", gone, all, what));
  };
  excluded(i.n, i.rows.size(), "rows are");
  excluded(i.m, i.columns.size(), "columns are");
  return warnings;
}

}  // namespace sinkgrad
