// Particles that start as a mixture of Gaussians and move in the corrected field, against the exact solution of the heat equation: the same
// mixture with variances grown by 2 c t.
#pragma once
#include <cstdint>
#include <vector>

#include "tools/theory/diffusion.h"

namespace sinkgrad {

/// Two round Gaussians in d = 1 or 2 dimensions.
struct GaussianMixture {
  int64_t dim = 1;
  double weight[2] = {0.6, 0.4};
  double mean[2][2] = {{-0.8, -0.5}, {1.0, 0.6}};
  double deviation = 0.45;
  /// After time t of the heat equation with constant c.
  GaussianMixture after(double t, double c) const;
  /// (D)
  double density(const double* x) const;
  /// In one dimension.
  double quantile(double u) const;
  /// The mean over the dimensions of the variance.
  double variance() const;
};

struct HeatFlow {
  std::vector<double> time;
  std::vector<std::vector<double>> positions;  ///< of every time: (N, D)
  std::vector<double> variance;                ///< of the particles, mean over the dimensions
  double constant() const;                     ///< the slope of variance / 2 against time by least squares: c as the flow shows it
};
/// Explicit Euler steps of size epsilon / 2 until `end`, M = 1; each particle carries its weight along.
HeatFlow run_heat_flow(Particles particles, Normalisation normalisation, double epsilon, double end);

/// n points at the quantiles of a one-dimensional mixture, in order, of equal weight.
Particles quantile_particles(const GaussianMixture& mixture, int64_t n);
/// A uniform grid over the two-dimensional mixture, each node with the mass of its cell; nodes beyond four deviations of both Gaussians are left out.
Particles grid_particles(const GaussianMixture& mixture, double spacing);
Particles random_particles(const GaussianMixture& mixture, int64_t n, uint64_t seed);
/// In one dimension, equal weights: the mean distance of the particles from the exact quantiles (Wasserstein-1).
double distance_to(const GaussianMixture& exact, const std::vector<double>& points);

}  // namespace sinkgrad
