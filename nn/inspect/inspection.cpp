// The half-steps as records of a tape. With a variable C_k (all holding the scores) for half-step k and one more for the last exponential:
//   row step     f_k = -log sum_j exp(C_k + g)          column step  g_k = log(n/m) - log sum_i exp(C_k + f)
//   plan         P = exp(C + f + g)                     contribution of half-step k: dL/dC_k, cotangent of its potential: dL/df_k or dL/dg_k
#include "nn/inspect/inspection.h"

#include <cmath>

#include "nn/inspect/difference.h"
#include "nn/inspect/problem.h"

namespace sinkgrad {
namespace {

double sum_of(const Numbers& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return sum;
}

Numbers numbers_of(const Tensor& t) { return to_doubles(t.view()); }

/// The half-steps on a tape, before and after its backward.
class UnrolledTape {
 public:
  UnrolledTape(const Problem& problem, int half_steps) : problem_(problem) {
    Var f, g;
    for (int k = 0; k < half_steps; ++k) {
      const Var c = tape_.variable(problem.scores);
      if (k % 2 == 0)
        f = neg(logsumexp(g ? add(c, g) : c, -1));  // (n, 1)
      else
        g = scale_shift(logsumexp(add(c, f), -2), -1, std::log(problem.column_target()));  // (1, m)
      const Var made = k % 2 == 0 ? f : g;
      tape_.retain_grad(made);
      scores_.push_back(c);
      potentials_.push_back(made);
    }
    const Var c = tape_.variable(problem.scores), plan = exp(add(g ? add(c, g) : c, f));
    scores_.push_back(c);
    for (const Record& r : tape_.records()) {
      bytes_kept_ += tape_.value(r.output).bytes();
      for (const View& saved : tape_.saved(r)) bytes_kept_ += saved.bytes();
    }
    tape_.backward(plan, problem.cotangent);
  }

  std::vector<InspectedStep> steps() const {
    std::vector<InspectedStep> steps;
    Numbers f(static_cast<size_t>(problem_.n())), g(static_cast<size_t>(problem_.m()));
    for (size_t k = 0; k < potentials_.size(); ++k) {
      const bool on_rows = k % 2 == 0;
      (on_rows ? f : g) = to_doubles(tape_.value(potentials_[k]));
      steps.push_back(step(on_rows, f, g, k));
    }
    return steps;
  }
  Numbers direct() const { return problem_.spread(to_doubles(tape_.grad(scores_.back()))); }
  size_t bytes_kept() const { return bytes_kept_; }

 private:
  InspectedStep step(bool on_rows, const Numbers& f, const Numbers& g, size_t k) const {
    const int64_t n = problem_.n(), m = problem_.m();
    const Numbers plan = plan_of(problem_.scores, f, g);
    Numbers row_sums(f.size()), column_sums(g.size()), own_f = f;
    for (size_t e = 0; e < plan.size(); ++e) {
      row_sums[e / g.size()] += plan[e];
      column_sums[e % g.size()] += plan[e];
    }
    for (size_t i = 0; i < f.size(); ++i) own_f[i] -= problem_.row_maxima[i];
    InspectedStep s{.on_rows = on_rows, .f = problem_.spread_rows(own_f), .g = problem_.spread_columns(g), .plan = problem_.spread(plan)};
    s.row_sums = problem_.spread_rows(row_sums);
    s.column_sums = problem_.spread_columns(column_sums);
    s.row_error = row_error(plan, n, m);
    s.column_error = column_error(plan, n, m);
    s.dual = sum_of(own_f) + problem_.column_target() * sum_of(g) - (sum_of(plan) - static_cast<double>(n));
    s.entropy = sum_of(row_entropies(plan, n, m)) / static_cast<double>(n);
    s.largest = largest(plan);
    const Numbers cotangent = to_doubles(tape_.grad(potentials_[k]));
    s.f_cotangent = problem_.spread_rows(on_rows ? cotangent : Numbers(f.size()));
    s.g_cotangent = problem_.spread_columns(on_rows ? Numbers(g.size()) : cotangent);
    s.contribution = problem_.spread(to_doubles(tape_.grad(scores_[k])));
    return s;
  }

  const Problem& problem_;
  Tape tape_{DType::f64};
  std::vector<Var> scores_, potentials_;  // one of the scores per half-step and the last exponential's; one potential per half-step
  size_t bytes_kept_ = 0;
};

double largest_difference(Numbers a, const Numbers& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return largest(a);
}

}  // namespace

Numbers Inspection::contributions_from(int first) const {
  Numbers sum = direct;
  for (size_t k = steps.size(); k-- > static_cast<size_t>(first - 1);)
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += steps[k].contribution[e];
  return sum;
}

Inspection inspect(const Tensor& scores, const InspectionOptions& options) {
  const Problem problem(scores, options);
  const FusedRun fused = run_fused(problem, {.iterations = options.half_steps, .tolerance = options.tolerance});
  Inspection i{.n = problem.full_n, .m = problem.full_m, .rows = problem.rows, .columns = problem.columns};
  i.half_steps = static_cast<int>(fused.report.most_half_steps);
  i.scores = numbers_of(problem.full_scores);
  i.cotangent = numbers_of(problem.full_cotangent);
  i.gradient = fused.gradient;
  {
    const UnrolledTape unrolled(problem, i.half_steps);
    i.steps = unrolled.steps();
    i.direct = unrolled.direct();
    i.step_by_step_bytes = unrolled.bytes_kept();
  }
  i.fused_plan_difference = largest_difference(i.last().plan, fused.plan);
  i.contributions_difference = largest_difference(i.contributions_from(1), i.gradient);
  i.limit = find_limit(problem);
  i.convergence = converge(problem, i.half_steps, i.limit);
  i.modes = compare_modes(problem, i.half_steps);
  i.jacobians = jacobians(problem, i.half_steps, i.limit.half_steps);
  i.warnings = warnings_of(i);
  return i;
}

}  // namespace sinkgrad
