// The Jacobian of the plan, row by row: one backward for each of its entries, on one recorded forward.
#include <cmath>
#include <set>

#include "nn/inspect/problem.h"

namespace sinkgrad {
namespace {

constexpr int64_t kMostEntries = 400;
constexpr double kRounding = 1e-15;  // entries of the Jacobian lie below 1

/// (n m, n m): row k is the gradient of entry k of the plan.
Numbers jacobian(const Problem& problem, const SinkhornOptions& options) {
  const Tensor gradient(problem.scores.shape(), DType::f64), cotangent(problem.scores.shape(), DType::f64);
  Tape tape(DType::f64);
  const Var plan = sinkhorn(tape.leaf(problem.scores, gradient), options);
  Numbers rows;
  for (double& seed : cotangent.span<double>()) {
    seed = 1;
    std::fill(gradient.span<double>().begin(), gradient.span<double>().end(), 0.0);
    tape.backward(plan, cotangent, {.retain = true});
    rows.insert(rows.end(), gradient.span<double>().begin(), gradient.span<double>().end());
    seed = 0;
  }
  return rows;
}

InspectedJacobian examine(const Numbers& j, int64_t size) {
  InspectedJacobian result;
  double worst = 0;
  for (int64_t r = 0; r < size; ++r)
    for (int64_t c = 0; c < r; ++c) worst = std::max(worst, std::abs(j[static_cast<size_t>(r * size + c)] - j[static_cast<size_t>(c * size + r)]));
  const double scale = largest(j);
  result.asymmetry = scale > kRounding ? worst / scale : 0;
  result.singular_values = singular_values(j, size, size);
  result.rank = std::count_if(result.singular_values.begin(), result.singular_values.end(),
                              [&](double s) { return s > std::max(1e-12 * result.singular_values.front(), kRounding); });
  return result;
}

}  // namespace

std::vector<InspectedJacobian> jacobians(const Problem& problem, int half_steps, int limit_half_steps) {
  const int64_t n = problem.n(), m = problem.m(), size = n * m;
  if (size > kMostEntries) return {};
  std::vector<InspectedJacobian> all;
  for (const int l : std::set{1, half_steps}) {
    all.push_back(examine(jacobian(problem, {.iterations = l}), size));
    all.back().name = l == 1 ? "softmax" : cat(l, " half-steps");
    // The first half-step forgets n row shifts; of columns, later ones can only forget what leaves (n-1) m.
    all.back().theory_rank = l == 1 ? n * (m - 1) : std::min(n * (m - 1), (n - 1) * m);
  }
  all.push_back(examine(jacobian(problem, {.iterations = limit_half_steps, .gradient = SinkhornGradient::implicit}), size));
  all.back().name = "limit";
  all.back().theory_rank = (n - 1) * (m - 1);
  return all;
}

}  // namespace sinkgrad
