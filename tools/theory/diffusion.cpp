// Scores are written as distances, -(x - x')^T M (x - x') / (2 epsilon): softmax's PDE needs that, and for Sinkhorn it is the same
// (Proposition 1) with potentials that hardly depend on epsilon, so that each epsilon starts from the one before.
#include "tools/theory/diffusion.h"

#include <cmath>
#include <numbers>

#include "core/rng.h"

namespace sinkgrad {
namespace {

constexpr double kPi = std::numbers::pi, kTilt = 0.5;
constexpr double kWave = kPi / BumpDensity::kHalfWidth;

Tensor distance_scores(const Particles& particles, const Tensor& interaction, double epsilon) {
  const auto n = static_cast<int64_t>(particles.weights.size()), d = static_cast<int64_t>(particles.points.size()) / n;
  const Tensor points = matrix(n, d, particles.points);
  Tape tape(DType::f64);
  tape.set_recording(false);
  // -1/2 (x_i - x_j)^T M (x_i - x_j) = x_i^T M x_j - 1/2 x_i^T M x_i - 1/2 x_j^T M x_j
  const Var x = tape.leaf(points), m = tape.leaf(interaction);
  const Var square = scale_shift(sum(mul(matmul(x, m), x), {1}, true), 0.5, 0);  // (N, 1)
  const Var scores = scale_shift(sub(sub(interaction_scores(x, m), square), transpose(square, 0, 1)), 1 / epsilon, 0);
  return copy_of(scores);
}

DiffusionConstant constant_of(const BumpDensity& density, const Particles& particles, const std::vector<double>& field) {
  const auto d = static_cast<size_t>(density.dim);
  double with_score = 0, score_norm = 0, with_position = 0;
  std::vector<double> score(d);
  for (size_t i = 0; i < particles.weights.size(); ++i) {
    density.score(&particles.points[i * d], score.data());
    for (size_t a = 0; a < d; ++a) {
      with_score -= particles.weights[i] * field[i * d + a] * score[a];
      score_norm += particles.weights[i] * score[a] * score[a];
      with_position += particles.weights[i] * field[i * d + a] * particles.points[i * d + a];
    }
  }
  return {with_score / score_norm, with_position / static_cast<double>(d)};
}

DiffusionPair constants_from(const BumpDensity& density, const Particles& particles, const Tensor& interaction, double epsilon,
                             std::vector<double>& potentials) {
  const auto read = [&](Normalisation normalisation) {
    return constant_of(density, particles, corrected_field(particles, interaction, epsilon, normalisation, potentials));
  };
  return {read(Normalisation::sinkhorn), read(Normalisation::softmax)};
}

/// The value at 0 of a quantity with an error a e + b e^2, from its values at 4 e, 2 e and e.
double extrapolate(double at_4e, double at_2e, double at_e) { return (8 * at_e - 6 * at_2e + at_4e) / 3; }

Estimate extrapolate(const Estimate& at_4e, const Estimate& at_2e, const Estimate& at_e) {
  return {extrapolate(at_4e.mean, at_2e.mean, at_e.mean), std::hypot(8 * at_e.error, 6 * at_2e.error, at_4e.error) / 3};
}

}  // namespace

double BumpDensity::value(const double* x) const {
  double bump = 1, tilt = kTilt;
  for (int64_t a = 0; a < dim; ++a) {
    bump *= std::pow(std::cos(kWave / 2 * x[a]), 4);
    tilt *= std::sin(kWave * x[a]);
  }
  return bump * (1 + tilt);
}

void BumpDensity::score(const double* x, double* out) const {
  double tilt = kTilt;
  for (int64_t a = 0; a < dim; ++a) tilt *= std::sin(kWave * x[a]);
  for (int64_t a = 0; a < dim; ++a) {
    const double other = dim == 1 ? 1 : std::sin(kWave * x[1 - a]);
    out[a] = -2 * kWave * std::tan(kWave / 2 * x[a]) + kTilt * kWave * std::cos(kWave * x[a]) * other / (1 + tilt);
  }
}

Particles weighted_grid(const BumpDensity& density, int64_t nodes) {
  const double step = 2 * BumpDensity::kHalfWidth / static_cast<double>(nodes);
  const auto at = [&](int64_t i) { return -BumpDensity::kHalfWidth + (static_cast<double>(i) + 0.5) * step; };
  Particles grid;
  double total = 0;
  for (int64_t i = 0; i < nodes; ++i)
    for (int64_t j = 0; j < (density.dim == 1 ? 1 : nodes); ++j) {
      const double x[2] = {at(i), at(j)};
      grid.points.insert(grid.points.end(), x, x + density.dim);
      grid.weights.push_back(density.value(x));
      total += grid.weights.back();
    }
  for (double& weight : grid.weights) weight /= total;
  return grid;
}

Particles random_draws(const BumpDensity& density, int64_t n, uint64_t seed) {
  RandomStream random(seed, "theory/draws");
  Particles draws;
  while (draws.weights.size() < static_cast<size_t>(n)) {
    double x[2] = {};
    for (int64_t a = 0; a < density.dim; ++a) x[a] = random.uniform(-BumpDensity::kHalfWidth, BumpDensity::kHalfWidth);
    if (random.uniform(0, 1 + kTilt) >= density.value(x)) continue;
    draws.points.insert(draws.points.end(), x, x + density.dim);
    draws.weights.push_back(1 / static_cast<double>(n));
  }
  return draws;
}

std::vector<double> corrected_field(const Particles& particles, const Tensor& interaction, double epsilon, Normalisation normalisation,
                                    std::vector<double>& potentials) {
  require(normalisation != Normalisation::none, "corrected_field: requires softmax or Sinkhorn");
  const Tensor scores = distance_scores(particles, interaction, epsilon);
  Tensor plan;
  if (normalisation == Normalisation::softmax) {
    plan = weighted_softmax(scores, particles.weights);
  } else {
    WeightedPlan limit = symmetric_sinkhorn(scores, particles.weights, std::move(potentials));
    potentials = std::move(limit.potentials);
    plan = limit.plan;
  }
  const auto n = plan.shape()[0];
  const Tensor points = matrix(n, static_cast<int64_t>(particles.points.size()) / n, particles.points);
  Tape tape(DType::f64);
  tape.set_recording(false);
  const Var x = tape.leaf(points);
  const Var field = matmul(sub(x, matmul(tape.leaf(plan), x)), tape.leaf(interaction));
  return to_doubles(tape.value(scale_shift(field, 1 / epsilon, 0)));
}

DiffusionPair diffusion_constants(const BumpDensity& density, const Particles& particles, const Tensor& interaction, double epsilon) {
  std::vector<double> potentials;
  return constants_from(density, particles, interaction, epsilon, potentials);
}

DiffusionLimit diffusion_limit(const BumpDensity& density, int64_t nodes, const Tensor& interaction, double largest_epsilon, int count) {
  require(count >= 3, "diffusion_limit: an extrapolation requires 3 values of epsilon, got ", count);
  const Particles grid = weighted_grid(density, nodes);
  DiffusionLimit limit;
  std::vector<double> potentials;
  double epsilon = largest_epsilon;
  for (int k = 0; k < count; ++k, epsilon /= 2) {
    limit.epsilon.push_back(epsilon);
    limit.constants.push_back(constants_from(density, grid, interaction, epsilon, potentials));
  }
  const DiffusionPair *last = &limit.constants.back(), *first = last - 2;
  limit.sinkhorn = extrapolate(first[0].sinkhorn.field, first[1].sinkhorn.field, last->sinkhorn.field);
  limit.softmax = extrapolate(first[0].softmax.field, first[1].softmax.field, last->softmax.field);
  return limit;
}

Estimate estimate(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double mean = 0, square = 0;
  for (double value : values) mean += value / n;
  for (double value : values) square += (value - mean) * (value - mean);
  return {mean, std::sqrt(square / (n - 1) / n)};
}

RandomDiffusion random_diffusion(const BumpDensity& density, const std::vector<int64_t>& counts, int64_t grid_nodes, int draws, double epsilon,
                                 uint64_t seed) {
  require(counts.size() >= 3 && draws >= 2, "random_diffusion: requires three counts and two draws, got ", counts.size(), " and ", draws);
  const Tensor m = identity(density.dim);
  RandomDiffusion result{.epsilon = epsilon, .counts = counts};
  for (size_t k = 0; k < counts.size(); ++k) {
    std::vector<double> sinkhorn, softmax;
    for (int draw = 0; draw < draws; ++draw) {
      const Particles particles = random_draws(density, counts[k], philox_key(seed, k * 1000 + static_cast<uint64_t>(draw)));
      const DiffusionPair c = diffusion_constants(density, particles, m, epsilon);
      sinkhorn.push_back(c.sinkhorn.spread);
      softmax.push_back(c.softmax.spread);
    }
    result.sinkhorn.push_back(estimate(sinkhorn));
    result.softmax.push_back(estimate(softmax));
  }
  const size_t last = counts.size() - 1;
  result.sinkhorn_limit = extrapolate(result.sinkhorn[last - 2], result.sinkhorn[last - 1], result.sinkhorn[last]);
  result.softmax_limit = extrapolate(result.softmax[last - 2], result.softmax[last - 1], result.softmax[last]);
  result.grid = diffusion_constants(density, weighted_grid(density, grid_nodes), m, epsilon);
  return result;
}

}  // namespace sinkgrad
