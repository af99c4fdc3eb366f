// Attention as a flow of particles (section 3 of the paper): the fields T of the three normalisations and the energies they descend, in
// float64 through the tape. All under Assumption 1, W_Q^T W_K = M symmetric and W_V = -M; scores are c_ij = x_i^T M x_j.
#pragma once
#include <vector>

#include "ops/ops.h"

namespace sinkgrad {

/// Which kernel moves the particles: e^c itself, K^1 (one half-step) or K^inf (Sinkhorn's limit).
enum class Normalisation { none, softmax, sinkhorn };
const char* name_of(Normalisation normalisation);

/// x_i^T M x_j; (N, D), (D, D) -> (N, N).
Var interaction_scores(Var points, Var interaction);
/// Sinkhorn until the columns are off by at most 1e-13, at most 20001 half-steps; (N, N) -> (N, N). Error when they are still off by more than 1e-9.
Var sinkhorn_limit(Var scores);
/// T(x_i) = -M sum_j K_ij x_j, for Normalisation::none -M/N sum_j e^{c_ij} x_j; (N, D) -> (N, D).
Var attention_field(Var points, Var interaction, Normalisation normalisation);
/// Proposition 2: F^0 = 1/2 mean e^{c_ij} for Normalisation::none, F^inf = -1/(2N) sum_ij P_ij (log(N P_ij) - c_ij) for sinkhorn, in which
/// N P is the paper's k^inf. Softmax has none (Proposition 3): Error.
Var attention_energy(Var points, Var interaction, Normalisation normalisation);

/// A tensor of doubles (rows, columns).
Tensor matrix(int64_t rows, int64_t columns, const std::vector<double>& values);
Tensor identity(int64_t size);
/// A copy that outlives the tape, of doubles.
Tensor copy_of(Var x);

/// The plan of a symmetric kernel between weighted particles.
struct WeightedPlan {
  Tensor plan;                     ///< (N, N): k^inf(x_i, x_j) w_j; rows sum to 1
  std::vector<double> potentials;  ///< f with plan = e^{s_ij + f_i + f_j} w_j
  int half_steps = 0;
  double marginal_error = 0;  ///< max_j |sum_i w_i plan_ij / w_j - 1|
};
/// Sinkhorn's limit for symmetric scores s (N, N) and weights w > 0 of sum 1. `potentials` is where to start; empty: 0.
/// Row and column potentials are equal in the limit, so after each half-step (our sinkhorn at one) both become the mean of the two, which
/// Proposition 1 allows: the error then halves with every half-step, however sharp the scores, where plain Sinkhorn needs about 1/epsilon.
/// Error when the potentials still move by more than 1e-10 after 400 half-steps.
WeightedPlan symmetric_sinkhorn(const Tensor& scores, const std::vector<double>& weights, std::vector<double> potentials = {});
/// The same for one half-step: e^{s_ij} w_j with rows scaled to 1.
Tensor weighted_softmax(const Tensor& scores, const std::vector<double>& weights);

}  // namespace sinkgrad
