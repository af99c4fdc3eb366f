// Only the last half-steps are compared: two inspections may take different numbers of them.
#include "nn/inspect/difference.h"

#include <limits>

#include "nn/inspect/problem.h"

namespace sinkgrad {
namespace {

Numbers minus(Numbers a, const Numbers& b) {
  for (size_t k = 0; k < a.size(); ++k) a[k] -= b[k];
  return a;
}

}  // namespace

Numbers row_entropies(const Numbers& plan, int64_t n, int64_t m) {
  Numbers entropies(static_cast<size_t>(n));
  for (size_t i = 0; i < entropies.size(); ++i) {
    const std::span row = std::span(plan).subspan(i * static_cast<size_t>(m), static_cast<size_t>(m));
    double sum = 0;
    for (double p : row) sum += p;
    for (double p : row)
      if (p > 0) entropies[i] -= p / sum * std::log(p / sum);
  }
  return entropies;
}

double norm(const Numbers& v) {
  double squares = 0;
  for (double x : v) squares += x * x;
  return std::sqrt(squares);
}

InspectionDifference difference(const Inspection& a, const Inspection& b) {
  require<ShapeError>(a.n == b.n && a.m == b.m, "inspect: what is compared must have scores of one shape, got ", Shape{a.n, a.m}, " and ",
                      Shape{b.n, b.m});
  const InspectedStep &x = a.last(), &y = b.last();
  InspectionDifference d{.plan = minus(y.plan, x.plan),
                         .gradient = minus(b.gradient, a.gradient),
                         .row_sums = minus(y.row_sums, x.row_sums),
                         .column_sums = minus(y.column_sums, x.column_sums),
                         .row_entropies = minus(row_entropies(y.plan, b.n, b.m), row_entropies(x.plan, a.n, a.m))};
  std::vector<int64_t> both;
  std::ranges::set_intersection(a.rows, b.rows, std::back_inserter(both));
  for (int64_t i : both)
    for (int64_t j = 0; j < a.m; ++j)
      d.moved += std::abs(d.plan[static_cast<size_t>(i * a.m + j)]) / (2 * static_cast<double>(std::max<size_t>(both.size(), 1)));
  const double before = norm(a.gradient), change = norm(d.gradient);
  d.gradient_change = before > 0 ? change / before : change > 0 ? std::numeric_limits<double>::infinity() : 0;
  d.plan_cosine = cosine(x.plan, y.plan);
  d.gradient_cosine = cosine(a.gradient, b.gradient);
  return d;
}

}  // namespace sinkgrad
