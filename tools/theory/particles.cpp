// The fields are compositions of our ops, so that the tape differentiates them; weighted kernels bring their weights in as scores.
#include "tools/theory/particles.h"

#include <algorithm>
#include <cmath>

namespace sinkgrad {

const char* name_of(Normalisation normalisation) {
  return normalisation == Normalisation::none ? "no normalisation" : normalisation == Normalisation::softmax ? "softmax" : "Sinkhorn";
}

Tensor matrix(int64_t rows, int64_t columns, const std::vector<double>& values) { return Tensor::of<double>({rows, columns}, values); }

Tensor identity(int64_t size) {
  Tensor result({size, size}, DType::f64);
  for (int64_t i = 0; i < size; ++i) result.span<double>()[static_cast<size_t>(i * (size + 1))] = 1;
  return result;
}

Tensor copy_of(Var x) {
  Tensor copy(x.shape(), DType::f64);
  std::ranges::copy(x.span<double>(), copy.span<double>().begin());
  return copy;
}

Var interaction_scores(Var points, Var interaction) { return matmul(matmul(points, interaction), points, false, true); }

Var sinkhorn_limit(Var scores) {
  const Var plan = sinkhorn(scores, {.iterations = 20001, .tolerance = 1e-13});
  const double error = sinkhorn_report(plan).marginal_error;
  require(error <= 1e-9, "sinkhorn_limit: columns are required to be within 1e-9 of their sum after 20001 half-steps, got ", error);
  return plan;
}

Var attention_field(Var points, Var interaction, Normalisation normalisation) {
  const Var scores = interaction_scores(points, interaction);
  const double n = static_cast<double>(points.shape()[0]);
  const Var kernel = normalisation == Normalisation::none      ? scale_shift(exp(scores), 1 / n, 0)
                     : normalisation == Normalisation::softmax ? sinkhorn(scores, {.iterations = 1})
                                                               : sinkhorn_limit(scores);
  return neg(matmul(matmul(kernel, points), interaction));
}

Var attention_energy(Var points, Var interaction, Normalisation normalisation) {
  require(normalisation != Normalisation::softmax, "attention_energy: requires no normalisation or Sinkhorn, softmax descends no energy");
  const Var scores = interaction_scores(points, interaction);
  if (normalisation == Normalisation::none) return scale_shift(mean(exp(scores)), 0.5, 0);
  const double n = static_cast<double>(points.shape()[0]);
  const Var plan = sinkhorn_limit(scores);
  return scale_shift(sum(mul(plan, sub(scale_shift(log(plan), 1, std::log(n)), scores))), -0.5 / n, 0);
}

namespace {

/// e^{s_ij} w_j with rows scaled to 1, for logarithms of the weights (1, N).
Var weighted_rows(Tape& tape, const Tensor& scores, const Tensor& log_weights) {
  return sinkhorn(add(tape.leaf(scores), tape.leaf(log_weights)), {.iterations = 1});
}

/// max_j |sum_i w_i plan_ij / w_j - 1|
double marginal_error(const Tensor& plan, const std::vector<double>& weights) {
  const size_t n = weights.size();
  std::vector<double> sums(n, 0);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) sums[j] += weights[i] * plan.span<double>()[i * n + j];
  double worst = 0;
  for (size_t j = 0; j < n; ++j) worst = std::max(worst, std::abs(sums[j] / weights[j] - 1));
  return worst;
}

}  // namespace

WeightedPlan symmetric_sinkhorn(const Tensor& scores, const std::vector<double>& weights, std::vector<double> potentials) {
  constexpr int kMostHalfSteps = 400;
  constexpr double kTolerance = 1e-10;
  const size_t n = weights.size();
  potentials.resize(n, 0);
  Tensor column({1, static_cast<int64_t>(n)}, DType::f64);  // f_j + log w_j
  Tape tape(DType::f64);
  tape.set_recording(false);
  WeightedPlan result;
  for (double moved = 1; moved > kTolerance; ++result.half_steps) {
    require(result.half_steps < kMostHalfSteps, "symmetric_sinkhorn: potentials are required to settle within ", kMostHalfSteps,
            " half-steps, they still move by ", moved);
    for (size_t j = 0; j < n; ++j) column.span<double>()[j] = potentials[j] + std::log(weights[j]);
    tape.reset();
    const Var plan = weighted_rows(tape, scores, column);
    const Tensor row = sinkhorn_potentials(plan, tape.value(tape.inputs(tape.records().back())[0])).row;
    moved = 0;
    for (size_t i = 0; i < n; ++i) {
      const double other = row.span<double>()[i];
      moved = std::max(moved, std::abs(other - potentials[i]) / 2);
      potentials[i] = (potentials[i] + other) / 2;
    }
  }
  for (size_t j = 0; j < n; ++j) column.span<double>()[j] = potentials[j] + std::log(weights[j]);
  tape.reset();
  result.plan = copy_of(weighted_rows(tape, scores, column));
  result.marginal_error = marginal_error(result.plan, weights);
  result.potentials = std::move(potentials);
  return result;
}

Tensor weighted_softmax(const Tensor& scores, const std::vector<double>& weights) {
  Tensor log_weights({1, static_cast<int64_t>(weights.size())}, DType::f64);
  std::ranges::transform(weights, log_weights.span<double>().begin(), [](double w) { return std::log(w); });
  Tape tape(DType::f64);
  tape.set_recording(false);
  return copy_of(weighted_rows(tape, scores, log_weights));
}

}  // namespace sinkgrad
