// Reading what a Sinkhorn call kept: statistics, warnings in words, potentials.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/sinkhorn_options.h"

namespace sinkgrad {

SinkhornReport sinkhorn_report(Var x) {
  const std::vector<double> stats = to_doubles(x.tape->saved(x, 2), x.tape->device());  // (matrices, 4)
  SinkhornReport r;
  for (size_t i = 0; i < stats.size(); i += 4) {
    const auto steps = static_cast<int64_t>(stats[i]);
    r.least_half_steps = i == 0 ? steps : std::min(r.least_half_steps, steps);
    r.most_half_steps = std::max(r.most_half_steps, steps);
    r.marginal_error = std::max(r.marginal_error, stats[i + 1]);
    r.largest_entry = std::max(r.largest_entry, stats[i + 2]);
    r.implicit_residual = std::max(r.implicit_residual, stats[i + 3]);
  }
  return r;
}

std::string SinkhornReport::warning() const {
  const bool even = most_half_steps % 2 == 0;
  auto short_number = [](double v) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2g", v);
    return std::string(text);
  };
  std::string s;
  if (most_half_steps > 1 && marginal_error > 0.1)
    s = cat(even ? "rows" : "columns", " are still off by ", short_number(marginal_error), " after ", most_half_steps,
            " half-steps: the scores are too sharp for so few");
  if (most_half_steps > 1 && largest_entry > 0.999)
    s += cat(s.empty() ? "" : "; ", "the largest entry is ", short_number(largest_entry),
             ": the plan is close to a permutation and its gradient vanishes");
  if (s.empty() && even && most_half_steps > 0) s = "an even number of half-steps ends on columns: rows do not sum to exactly 1";
  return s;
}

SinkhornPotentials sinkhorn_potentials(Var plan, const View& scores) {
  const Shape& s = plan.shape();
  const int64_t n = s[-2], m = s[-1], count = s.count(0, s.rank() - 2);
  const Device device = plan.tape->device();
  const std::vector<double> p = to_doubles(plan.tape->value(plan), device), x = to_doubles(scores, device),
                            g = to_doubles(plan.tape->saved(plan, 1), device), stats = to_doubles(plan.tape->saved(plan, 2), device);
  const int64_t column_steps = plan.tape->saved(plan, 1).shape[1];
  Shape row_shape, column_shape;
  for (int i = 0; i < s.rank() - 2; ++i) {
    row_shape.push_back(s[i]);
    column_shape.push_back(s[i]);
  }
  row_shape.push_back(n);
  column_shape.push_back(m);
  SinkhornPotentials out{Tensor(row_shape, DType::f64), Tensor(column_shape, DType::f64)};
  for (int64_t b = 0; b < count; ++b) {
    const auto column = static_cast<int64_t>(stats[static_cast<size_t>(b * 4)]) / 2 - 1;
    double* gb = out.column.span<double>().data() + b * m;
    for (int64_t j = 0; j < m && column >= 0; ++j) gb[j] = g[static_cast<size_t>((b * column_steps + column) * m + j)];
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>((b * n + i) * m);
      const auto j =
          m ? std::max_element(p.begin() + static_cast<std::ptrdiff_t>(at), p.begin() + static_cast<std::ptrdiff_t>(at) + m) - p.begin() : 0;
      // From the row's largest entry, where the logarithm is exact; an excluded row has none and keeps 0.
      if (m && p[static_cast<size_t>(j)] > 0)
        out.row.span<double>()[static_cast<size_t>(b * n + i)] =
            std::log(p[static_cast<size_t>(j)]) - x[static_cast<size_t>(j)] - gb[static_cast<size_t>(j) - at];
    }
  }
  return out;
}

}  // namespace sinkgrad
