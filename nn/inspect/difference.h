// Two inspections side by side: what changes from softmax to five half-steps, or from one checkpoint to the next.
#pragma once
#include "nn/inspect/inspection.h"

namespace sinkgrad {

/// The second minus the first, each after its last half-step.
struct InspectionDifference {
  Numbers plan, gradient;         ///< (n, m): of P and of dL/dC
  Numbers row_sums, column_sums;  ///< (n), (m)
  Numbers row_entropies;          ///< (n): of the weights of each row, in nats
  double moved;                   ///< sum_j |change of P_ij| / 2, mean over the rows that take part in both: the mass that a row moves
  double gradient_change;         ///< |change of dL/dC| / |first dL/dC| (Frobenius norms); infinite where the first vanishes alone
  double plan_cosine, gradient_cosine;
};

/// ShapeError when the scores differ in shape.
InspectionDifference difference(const Inspection& first, const Inspection& second);

/// The entropy (n) of each row of a plan (n, m) as a distribution, in nats; 0 of an excluded row.
Numbers row_entropies(const Numbers& plan, int64_t n, int64_t m);
/// The square root of the sum of squares (of a matrix: Frobenius).
double norm(const Numbers& values);

}  // namespace sinkgrad
