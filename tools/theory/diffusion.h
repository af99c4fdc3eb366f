// Theorem 1 and Proposition 4 of the paper: as epsilon falls, attention between the points of a density rho is diffusion. With W_Q = W_K and
// W_V = -W_Q^T W_K = -M the corrected field (x - K x) M / epsilon tends to -c grad log rho, so that rho follows the heat equation
// d rho / dt = c Laplacian rho: c = 1/2 for Sinkhorn, c = 1 for softmax of -1/2 |W_Q x - W_K x'|^2 (the kernel is exp(score / epsilon)).
#pragma once
#include <cstdint>
#include <vector>

#include "tools/theory/particles.h"

namespace sinkgrad {

/// A smooth density on [-3, 3]^d, d = 1 or 2, not normalised: a product of cos^4(pi x / 6) and a tilt that makes it asymmetric, in two dimensions
/// no product. It vanishes at the border with three derivatives, as Theorem 1 asks for.
struct BumpDensity {
  int64_t dim = 1;
  static constexpr double kHalfWidth = 3;
  double value(const double* x) const;
  /// grad log rho
  void score(const double* x, double* out) const;
};

/// Points that stand for a density: (N, D), with weights of sum 1.
struct Particles {
  std::vector<double> points, weights;
};
/// The nodes of a uniform grid with `nodes` along each axis, each with the mass of its cell.
Particles weighted_grid(const BumpDensity& density, int64_t nodes);
/// `n` independent draws of equal weight.
Particles random_draws(const BumpDensity& density, int64_t n, uint64_t seed);

/// (x - K x) M / epsilon, (N, D) row-major: the attention field without its term in x. For Sinkhorn `potentials` are where to start (empty: 0)
/// and become those found. `interaction` (D, D) is M.
std::vector<double> corrected_field(const Particles& particles, const Tensor& interaction, double epsilon, Normalisation normalisation,
                                    std::vector<double>& potentials);

/// The constant c as two readings of one field.
struct DiffusionConstant {
  double field = 0;   ///< least squares of the field against -grad log rho, weighted by rho
  double spread = 0;  ///< half the growth rate of the variance per dimension, which for the heat equation is c too
};
struct DiffusionPair {
  DiffusionConstant sinkhorn, softmax;
};
DiffusionPair diffusion_constants(const BumpDensity& density, const Particles& particles, const Tensor& interaction, double epsilon);

/// c on weighted grids for falling epsilon, each half of the one before, and the limit by Richardson extrapolation of the last three.
struct DiffusionLimit {
  std::vector<double> epsilon;
  std::vector<DiffusionPair> constants;
  double sinkhorn = 0, softmax = 0;
};
DiffusionLimit diffusion_limit(const BumpDensity& density, int64_t nodes, const Tensor& interaction, double largest_epsilon, int count);

/// A number with its standard error.
struct Estimate {
  double mean = 0, error = 0;
};
Estimate estimate(const std::vector<double>& values);

/// c of `draws` sets of n random particles, by the growth of the variance, and its extrapolation to 1/n = 0 from the last three counts.
struct RandomDiffusion {
  double epsilon = 0;
  std::vector<int64_t> counts;              ///< each twice the one before
  std::vector<Estimate> sinkhorn, softmax;  ///< one per count
  Estimate sinkhorn_limit, softmax_limit;   ///< for n to infinity at this epsilon
  DiffusionPair grid;                       ///< of the weighted grid at the same epsilon: what they should tend to
};
RandomDiffusion random_diffusion(const BumpDensity& density, const std::vector<int64_t>& counts, int64_t grid_nodes, int draws, double epsilon,
                                 uint64_t seed);

}  // namespace sinkgrad
