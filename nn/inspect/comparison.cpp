// The fixed point, the way there, and the ways to differentiate side by side. All of it by the op `sinkhorn` in f64.
#include <fmt/format.h>

#include <cmath>

#include "nn/inspect/problem.h"

namespace sinkgrad {
namespace {

constexpr double kConverged = 1e-13;
constexpr double kMostDifferences = 5e8;  // exponentials: a few seconds

/// The largest odd count of half-steps that costs at most `budget` exponentials, between `least` and `most`.
int affordable(const Problem& problem, double budget, int least, int most) {
  return static_cast<int>(std::clamp(budget / static_cast<double>(problem.scores.count()), static_cast<double>(least), static_cast<double>(most))) |
         1;
}

/// The largest |a - b| over the largest |b|, of gradients; where b vanishes but for rounding, over what counts as rounding.
double relative_difference(const Problem& problem, Numbers a, const Numbers& b) {
  for (size_t k = 0; k < a.size(); ++k) a[k] -= b[k];
  return largest(a) / std::max({largest(b), 1e-10 * largest(to_doubles(problem.cotangent.view())), 1e-300});
}

/// dL/dC by central differences with steps 1e-3 and half of it, extrapolated to step 0 (Richardson), many perturbed matrices at a time.
class FiniteDifferences {
 public:
  FiniteDifferences(const Problem& problem, int half_steps) : problem_(problem), half_steps_(half_steps) {
    const auto entries = static_cast<size_t>(problem.scores.count());
    Numbers gradient(entries);
    const size_t at_once = std::clamp<size_t>((size_t{1} << 16) / entries, 1, entries);
    for (size_t begin = 0; begin < entries; begin += at_once) {
      const size_t end = std::min(entries, begin + at_once);
      const Numbers losses = losses_around(begin, end);
      for (size_t e = begin; e < end; ++e) {
        const double* loss = &losses[4 * (e - begin)];
        const double wide = (loss[0] - loss[1]) / (2 * kStep), narrow = (loss[2] - loss[3]) / kStep;
        gradient[e] = (4 * narrow - wide) / 3;
        error_bar_ = std::max(error_bar_, std::abs(gradient[e] - narrow));
      }
    }
    gradient_ = problem.spread(gradient);
  }
  const Numbers& gradient() const { return gradient_; }
  double error_bar() const { return error_bar_; }
  static double cost(const Problem& problem, int half_steps) {
    return 4.0 * half_steps * static_cast<double>(problem.scores.count()) * static_cast<double>(problem.scores.count());
  }

 private:
  static constexpr double kStep = 1e-3;

  /// The losses of entries begin .. end-1 moved by +h, -h, +h/2, -h/2.
  Numbers losses_around(size_t begin, size_t end) const {
    const std::span<const double> scores = problem_.scores.span<double>(), weights = problem_.cotangent.span<double>();
    const size_t matrices = 4 * (end - begin), size = scores.size();
    Tensor moved({static_cast<int64_t>(matrices), problem_.n(), problem_.m()}, DType::f64);
    for (size_t k = 0; k < matrices; ++k) {
      double* matrix = moved.span<double>().data() + k * size;
      std::copy(scores.begin(), scores.end(), matrix);
      matrix[begin + k / 4] += (k % 2 ? -kStep : kStep) / (k % 4 < 2 ? 1 : 2);
    }
    Tape tape(DType::f64);
    const Var plan = sinkhorn(tape.leaf(moved), {.iterations = half_steps_});
    Numbers losses(matrices);
    for (size_t k = 0; k < matrices; ++k)
      for (size_t e = 0; e < size; ++e) losses[k] += plan.span<double>()[k * size + e] * weights[e];
    return losses;
  }

  const Problem& problem_;
  int half_steps_;
  Numbers gradient_;
  double error_bar_ = 0;
};

/// Plan and gradient of the valid rectangle.
struct RectangleRun {
  Numbers plan, gradient;
};
RectangleRun run_rectangle(const Problem& problem, int half_steps, SinkhornGradient mode) {
  Tape tape(DType::f64);
  const Var scores = tape.variable(problem.scores), plan = sinkhorn(scores, {.iterations = half_steps, .gradient = mode});
  tape.backward(plan, problem.cotangent);
  return {to_doubles(tape.value(plan)), to_doubles(tape.grad(scores))};
}

/// P scaled to unit marginals: P_ij / sqrt(row sum_i column sum_j). Its largest singular value is 1.
Numbers with_unit_marginals(Numbers plan, int64_t n, int64_t m) {
  Numbers row_sums(static_cast<size_t>(n)), column_sums(static_cast<size_t>(m));
  for (size_t k = 0; k < plan.size(); ++k) {
    row_sums[k / column_sums.size()] += plan[k];
    column_sums[k % column_sums.size()] += plan[k];
  }
  for (size_t k = 0; k < plan.size(); ++k)
    if (plan[k] > 0) plan[k] /= std::sqrt(row_sums[k / column_sums.size()] * column_sums[k % column_sums.size()]);
  return plan;
}

}  // namespace

InspectedLimit find_limit(const Problem& problem) {
  const int64_t n = problem.n(), m = problem.m();
  Tape tape(DType::f64);
  const Var scores = tape.variable(problem.scores);
  const Var plan =
      sinkhorn(scores, {.iterations = affordable(problem, 2e8, 201, 20001), .tolerance = kConverged, .gradient = SinkhornGradient::implicit});
  tape.backward(plan, problem.cotangent);
  const Numbers p = to_doubles(tape.value(plan));
  const SinkhornReport report = sinkhorn_report(plan);
  InspectedLimit limit{.half_steps = static_cast<int>(report.most_half_steps), .converged = report.marginal_error <= kConverged};
  limit.column_error = column_error(p, n, m);
  const SinkhornPotentials potentials = sinkhorn_potentials(plan, problem.scores.view());
  for (double f : potentials.row.span<double>()) limit.dual += f;
  for (double top : problem.row_maxima) limit.dual -= top;
  for (double g : potentials.column.span<double>()) limit.dual += problem.column_target() * g;
  const Numbers singular = singular_values(with_unit_marginals(p, n, m), n, m);
  limit.sigma2 = singular.size() > 1 ? singular[1] : 0;
  limit.plan = problem.spread(p);
  limit.gradient = problem.spread(to_doubles(tape.grad(scores)));
  return limit;
}

InspectedConvergence converge(const Problem& problem, int half_steps, const InspectedLimit& limit) {
  const int64_t n = problem.n(), m = problem.m();
  // A run of k half-steps costs k exponentials per entry, and so do its gradients: the comparison grows with the square.
  const int affordable_steps = static_cast<int>(std::sqrt(1e9 / static_cast<double>(problem.scores.count())));
  const int horizon = std::max(half_steps, std::min({limit.half_steps, 101, affordable_steps | 1}));

  InspectedConvergence c;
  Tape tape(DType::f64);
  const Var plan = sinkhorn(tape.leaf(problem.scores), {.iterations = horizon});
  const Numbers row = to_doubles(tape.saved(plan, 0)), column = to_doubles(tape.saved(plan, 1));  // potentials of every step
  Numbers f(static_cast<size_t>(n)), g(static_cast<size_t>(m));
  for (int k = 0; k < horizon; ++k) {
    Numbers& made = k % 2 == 0 ? f : g;
    std::copy_n((k % 2 == 0 ? row : column).begin() + k / 2 * static_cast<std::ptrdiff_t>(made.size()), made.size(), made.begin());
    const Numbers p = plan_of(problem.scores, f, g);
    c.row_error.push_back(row_error(p, n, m));
    c.column_error.push_back(column_error(p, n, m));
    double dual = static_cast<double>(n);
    for (double value : p) dual -= value;
    for (size_t i = 0; i < f.size(); ++i) dual += f[i] - problem.row_maxima[i];
    for (double value : g) dual += problem.column_target() * value;
    c.dual.push_back(dual);
  }

  const int most = std::min(horizon, affordable_steps | 1), every = 2 * (most / 80 + 1);
  for (int k = 1; k <= most; k += every) {
    const Numbers exact = run_rectangle(problem, k, SinkhornGradient::unrolled).gradient;
    const auto compare = [&](SinkhornGradient mode, Numbers& differences, Numbers& cosines) {
      const Numbers other = run_rectangle(problem, k, mode).gradient;
      differences.push_back(relative_difference(problem, other, exact));
      cosines.push_back(cosine(other, exact));
    };
    c.odd.push_back(k);
    compare(SinkhornGradient::implicit, c.implicit_difference, c.implicit_cosine);
    compare(SinkhornGradient::frozen, c.frozen_difference, c.frozen_cosine);
  }
  return c;
}

std::vector<InspectedMode> compare_modes(const Problem& problem, int half_steps) {
  std::vector<InspectedMode> modes;
  for (const auto& [name, mode] : {std::pair("unrolled", SinkhornGradient::unrolled), std::pair("implicit", SinkhornGradient::implicit),
                                   std::pair("frozen", SinkhornGradient::frozen)}) {
    const FusedRun run = run_fused(problem, {.iterations = half_steps, .gradient = mode});
    modes.push_back({.name = name, .gradient = run.gradient, .bytes_kept = run.bytes_kept});
    if (mode == SinkhornGradient::implicit) modes.back().note = fmt::format("relative residual {:.1e}", run.report.implicit_residual);
  }
  InspectedMode differences{.name = "finite_differences", .bytes_kept = 0};
  if (FiniteDifferences::cost(problem, half_steps) <= kMostDifferences) {
    const FiniteDifferences numeric(problem, half_steps);
    differences.gradient = numeric.gradient();
    differences.note = fmt::format("errors at most {:.1e}", numeric.error_bar());
  } else {
    differences.note = cat("not computed: ", problem.scores.count(), " entries at ", half_steps, " half-steps are too many");
  }
  modes.push_back(std::move(differences));
  for (InspectedMode& mode : modes)
    if (!mode.gradient.empty()) {
      mode.difference = relative_difference(problem, mode.gradient, modes.front().gradient);
      mode.cosine = cosine(mode.gradient, modes.front().gradient);
    }
  return modes;
}

}  // namespace sinkgrad
