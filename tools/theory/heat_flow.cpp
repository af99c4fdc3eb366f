// Sinkhorn's potentials move little from step to step, so each step starts from those of the one before.
#include "tools/theory/heat_flow.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "core/rng.h"

namespace sinkgrad {
namespace {

/// The mean over the dimensions.
double variance_of(const Particles& particles) {
  const size_t n = particles.weights.size(), d = particles.points.size() / n;
  double sum = 0;
  for (size_t a = 0; a < d; ++a) {
    double mean = 0, square = 0;
    for (size_t i = 0; i < n; ++i) mean += particles.weights[i] * particles.points[i * d + a];
    for (size_t i = 0; i < n; ++i) square += particles.weights[i] * std::pow(particles.points[i * d + a] - mean, 2);
    sum += square;
  }
  return sum / static_cast<double>(d);
}

}  // namespace

GaussianMixture GaussianMixture::after(double t, double c) const {
  GaussianMixture later = *this;
  later.deviation = std::sqrt(deviation * deviation + 2 * c * t);
  return later;
}

double GaussianMixture::density(const double* x) const {
  double sum = 0;
  for (int k = 0; k < 2; ++k) {
    double factor = weight[k];
    for (int64_t a = 0; a < dim; ++a) {
      const double z = (x[a] - mean[k][a]) / deviation;
      factor *= std::exp(-z * z / 2) / (deviation * std::sqrt(2 * std::numbers::pi));
    }
    sum += factor;
  }
  return sum;
}

double GaussianMixture::quantile(double u) const {
  const auto below = [&](double x) {
    double sum = 0;
    for (int k = 0; k < 2; ++k) sum += weight[k] * std::erfc((mean[k][0] - x) / deviation / std::numbers::sqrt2) / 2;
    return sum;
  };
  double low = -20, high = 20;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (below(middle) < u ? low : high) = middle;
  }
  return (low + high) / 2;
}

double GaussianMixture::variance() const {
  double sum = deviation * deviation;
  for (int64_t a = 0; a < dim; ++a) {
    const double gap = mean[0][a] - mean[1][a];
    sum += weight[0] * weight[1] * gap * gap / static_cast<double>(dim);
  }
  return sum;
}

HeatFlow run_heat_flow(Particles particles, Normalisation normalisation, double epsilon, double end) {
  const int steps = static_cast<int>(std::ceil(2 * end / epsilon));
  const double step_size = end / steps;
  const size_t dim = particles.points.size() / particles.weights.size();
  const Tensor m = identity(static_cast<int64_t>(dim));
  HeatFlow flow;
  std::vector<double> potentials;
  for (int step = 0;; ++step) {
    flow.time.push_back(step * step_size);
    flow.variance.push_back(variance_of(particles));
    flow.positions.push_back(particles.points);
    if (step == steps) return flow;
    const std::vector<double> field = corrected_field(particles, m, epsilon, normalisation, potentials);
    for (size_t i = 0; i < field.size(); ++i) particles.points[i] += step_size * field[i];
  }
}

double HeatFlow::constant() const {
  const auto n = static_cast<double>(time.size());
  const double mean_time = std::accumulate(time.begin(), time.end(), 0.0) / n;
  double with_time = 0, time_norm = 0;
  for (size_t i = 0; i < time.size(); ++i) {
    with_time += (time[i] - mean_time) * variance[i];
    time_norm += (time[i] - mean_time) * (time[i] - mean_time);
  }
  return with_time / time_norm / 2;
}

Particles quantile_particles(const GaussianMixture& mixture, int64_t n) {
  Particles particles;
  for (int64_t i = 0; i < n; ++i) {
    particles.points.push_back(mixture.quantile((static_cast<double>(i) + 0.5) / static_cast<double>(n)));
    particles.weights.push_back(1 / static_cast<double>(n));
  }
  return particles;
}

Particles grid_particles(const GaussianMixture& mixture, double spacing) {
  const double reach = 4 * mixture.deviation;
  Particles grid;
  double total = 0;
  const auto range = [&](int a) {
    return std::pair(std::min(mixture.mean[0][a], mixture.mean[1][a]) - reach, std::max(mixture.mean[0][a], mixture.mean[1][a]) + reach);
  };
  const auto [left, right] = range(0);
  const auto [bottom, top] = range(1);
  const auto near = [&](const double* x, int k) { return std::hypot(x[0] - mixture.mean[k][0], x[1] - mixture.mean[k][1]) < reach; };
  for (double u = left; u <= right; u += spacing)
    for (double v = bottom; v <= top; v += spacing) {
      const double x[2] = {u, v};
      if (!near(x, 0) && !near(x, 1)) continue;
      grid.points.insert(grid.points.end(), x, x + 2);
      grid.weights.push_back(mixture.density(x));
      total += grid.weights.back();
    }
  for (double& weight : grid.weights) weight /= total;
  return grid;
}

Particles random_particles(const GaussianMixture& mixture, int64_t n, uint64_t seed) {
  RandomStream random(seed, "theory/mixture");
  Particles particles;
  for (int64_t i = 0; i < n; ++i) {
    const int k = random.uniform() < mixture.weight[0] ? 0 : 1;
    for (int64_t a = 0; a < mixture.dim; ++a) particles.points.push_back(mixture.mean[k][a] + mixture.deviation * random.normal());
    particles.weights.push_back(1 / static_cast<double>(n));
  }
  return particles;
}

double distance_to(const GaussianMixture& exact, const std::vector<double>& points) {
  std::vector<double> sorted = points;
  std::ranges::sort(sorted);
  const std::vector<double> quantiles = quantile_particles(exact, static_cast<int64_t>(points.size())).points;
  double sum = 0;
  for (size_t i = 0; i < sorted.size(); ++i) sum += std::abs(sorted[i] - quantiles[i]);
  return sum / static_cast<double>(sorted.size());
}

}  // namespace sinkgrad
