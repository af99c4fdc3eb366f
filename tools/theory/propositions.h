// Propositions 1 to 3 of the paper as numbers: what Sinkhorn's limit does not see, the energies that attention descends, and the one
// field of the three that is no gradient.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/theory/particles.h"

namespace sinkgrad {

/// Proposition 1: plans of scores C and of C + f_i + g_j after l half-steps, and of -1/2 |q_i - k_j|^2 in place of q_i . k_j.
struct Invariance {
  std::vector<double> half_steps;                                      ///< 1, 3, 5, 9, ...
  std::vector<double> difference;                                      ///< max_ij |P_l(C) - P_l(C + f + g)|
  std::vector<double> distance_difference;                             ///< the same for the scores that are distances
  std::vector<double> softmax, softmax_shifted, limit, limit_shifted;  ///< (n, n): plans of both after 1 half-step and after the last
  double rate = 0;                                                     ///< sigma_2(P)^2 of the limit: the factor per two half-steps to expect
};
/// C = q_i . k_j of `n` random queries and keys in two dimensions; f and g are normal with standard deviation 2.
Invariance measure_invariance(uint64_t seed, int64_t n = 24);

/// Proposition 2: particles under explicit Euler steps of their field.
struct ParticleFlow {
  std::vector<std::vector<double>> positions;  ///< of every step, step 0 first: (N, D) row-major
  std::vector<double> energy;                  ///< of every step; for softmax that of Sinkhorn, which nothing obliges to fall
  double largest_rise = 0;                     ///< of the energy in one step; 0 where it never rises
  /// max_i |T(x_i) + N dF/dx_i| / max_i |T(x_i)| at the start, with the tape's gradient of F; NaN for softmax.
  double gradient_gap = 0;
};
/// `points` (N, 2), `interaction` (2, 2).
ParticleFlow run_flow(const Tensor& points, const Tensor& interaction, Normalisation normalisation, int steps, double step_size);

/// Proposition 3: a field on N particles is a Wasserstein gradient only if its Jacobian (N D, N D) is symmetric.
struct FieldJacobian {
  std::vector<double> values;  ///< (N D, N D): row i D + a is the gradient of component a of T(x_i), by the tape
  double asymmetry = 0;        ///< |J - J^T| / |J| in Frobenius norm
};
FieldJacobian field_jacobian(const Tensor& points, const Tensor& interaction, Normalisation normalisation);

/// n points (n, d) of a standard normal distribution times `spread`.
Tensor random_points(uint64_t seed, int64_t n, int64_t d, double spread = 1);
/// A A^T / d + 1/4 with A normal, scaled to trace d: symmetric and positive definite, with scores that plain Sinkhorn can follow.
Tensor random_interaction(uint64_t seed, int64_t d);

}  // namespace sinkgrad
