// What Sinkhorn means here. One half-step normalises rows (softmax), the next columns, and so on, rows first.
#pragma once
#include "core/tape.h"

namespace sinkgrad {

enum class SinkhornGradient {
  unrolled,  ///< exact, through every half-step taken
  implicit,  ///< at the fixed point: a linear solve whose residual is reported; for converged Sinkhorn
  frozen,    ///< column potentials held constant, as the authors' released text model does; not the true gradient
};

struct SinkhornOptions {
  int iterations = 1;    ///< half-steps, rows first: 1 = softmax, 3 = row, column, row
  double tolerance = 0;  ///< > 0: per matrix, stop after a row step once max_j |column sum_j m/n - 1| <= tolerance
  SinkhornGradient gradient = SinkhornGradient::unrolled;
  bool rows_sum_to_inverse_count = false;  ///< rows sum to 1/n instead of 1, as in the authors' released Set model
  bool expose_plan = false;                ///< sinkhorn_attention keeps its plan for reading: see attention_plan()
};

/// i32 masks, nonzero = excluded: the key or query takes part in no normalisation and gets mass and gradient exactly 0.
struct AttentionMasks {
  Var key_is_padding = {};    ///< (B, M)
  Var query_is_padding = {};  ///< (B, N)
  Var pair_is_hidden = {};    ///< (N, M) or (B, N, M); only at one half-step: no doubly stochastic matrix is causal but the identity
};

/// What happened in one call: counts and errors over all its matrices.
struct SinkhornReport {
  int64_t least_half_steps = 0, most_half_steps = 0;
  double marginal_error = 0;     ///< max over matrices and columns of |column sum m/n - 1| (rows for even counts: |row sum - 1|)
  double largest_entry = 0;      ///< of the plans with row sums 1
  double implicit_residual = 0;  ///< relative residual of the implicit solve; 0 before backward and in other modes
  /// A sentence when the numbers deserve one ("columns are still off by 0.45 after 3 half-steps: ..."), else empty.
  std::string warning() const;
};
/// Of a value made by sinkhorn or sinkhorn_attention.
SinkhornReport sinkhorn_report(Var plan_or_output);
/// The plans (B, H, N, M) of a sinkhorn_attention that was asked to expose them.
View attention_plan(Var output);
/// Row potentials (..., N) and column potentials (..., M) of sinkhorn after its last half-steps: plan = exp(scores + f + g) (times 1/n).
struct SinkhornPotentials {
  Tensor row, column;
};
SinkhornPotentials sinkhorn_potentials(Var plan, const View& scores);

}  // namespace sinkgrad
