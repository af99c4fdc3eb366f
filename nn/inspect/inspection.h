// What Sinkhorn does to one matrix of scores, and to the gradient on its way back, half-step by half-step. Numbers only: pages and files are
// made of them elsewhere. The half-steps are recorded on a tape, each with a variable of its own for the scores, so that the gradient of
// that variable is what this half-step contributes; the fused op `sinkhorn` is run beside them.
//
//   const Inspection i = inspect(scores, {.half_steps = 5});      // scores (n, m), f64
//   i.steps[2].plan; i.steps[2].contribution; i.gradient; i.warnings;
#pragma once
#include <string>
#include <vector>

#include "core/numbers.h"
#include "nn/inspect/spectrum.h"

namespace sinkgrad {

struct InspectionOptions {
  int half_steps = 5;                                    ///< rows first
  double tolerance = 0;                                  ///< as in SinkhornOptions: may stop earlier
  std::vector<int64_t> masked_queries{}, masked_keys{};  ///< rows and columns that are excluded
  Tensor cotangent{};                                    ///< dL/dP (n, m) f64; absent: normal numbers from `seed`
  uint64_t seed = 1;
};

/// The state after half-step k, and what comes back to it. P = exp(C + f + g). Excluded rows and columns hold zeros.
struct InspectedStep {
  bool on_rows;                      ///< a row step makes f, a column step makes g
  Numbers f, g;                      ///< potentials (n), (m): both as they stand after the half-step
  Numbers plan;                      ///< (n, m)
  Numbers row_sums, column_sums;     ///< (n), (m)
  double row_error, column_error;    ///< max_i |row sum - 1|, max_j |column sum m/n - 1|
  double dual;                       ///< sum_i f_i + (n/m) sum_j g_j - (sum P - n): grows to the regularised optimum
  double entropy, largest;           ///< mean entropy of the rows in nats; the largest entry of the plan
  Numbers f_cotangent, g_cotangent;  ///< dL/d(the potential made here) (n), (m); the other one is 0
  Numbers contribution;              ///< (n, m): dL/dC through the scores that this half-step reads
};

/// The fixed point, or how far the half-steps came on the way there.
struct InspectedLimit {
  int half_steps;
  bool converged;  ///< columns within 1e-13 of their sums
  double column_error, dual;
  Numbers plan, gradient;  ///< (n, m): dL/dC from the implicit equations
  double sigma2;           ///< second singular value of the plan scaled to unit marginals; the error falls by sigma2^2 per two half-steps
};

/// One way to differentiate. Differences are from the unrolled gradient, relative to its largest entry.
struct InspectedMode {
  std::string name;  ///< "unrolled", "implicit", "frozen", "finite differences"
  Numbers gradient;  ///< dL/dC (n, m); empty when it was not computed
  double difference, cosine;
  size_t bytes_kept;  ///< from forward to backward besides scores and plan; differences keep nothing
  std::string note;   ///< the solver's residual, the error bar, or why it was not computed
};

/// How the error and the shortcuts fare when more half-steps are taken.
struct InspectedConvergence {
  Numbers row_error, column_error, dual;           ///< after half-steps 1, 2, ...
  std::vector<int> odd;                            ///< half-steps 1, 3, ... at which the gradients were compared
  Numbers implicit_difference, frozen_difference;  ///< see InspectedMode
  Numbers implicit_cosine, frozen_cosine;
};

/// The Jacobian dP/dC (n m, n m) of the valid entries.
struct InspectedJacobian {
  std::string name;  ///< "softmax", "5 half-steps", "limit"
  Numbers singular_values;
  int64_t rank;         ///< singular values above 1e-12 of the largest
  int64_t theory_rank;  ///< n(m-1) of softmax, min(n(m-1), (n-1)m) of more half-steps, (n-1)(m-1) at the limit
  double asymmetry;     ///< max |J - J^T| / max |J|
};

struct Inspection {
  int64_t n, m;                        ///< of the scores as given
  std::vector<int64_t> rows, columns;  ///< those that take part
  int half_steps;
  Numbers scores, cotangent;  ///< (n, m)
  std::vector<InspectedStep> steps;
  Numbers direct;                   ///< (n, m): the contribution of the last exponential, P o dL/dP
  Numbers gradient;                 ///< dL/dC of the fused op, unrolled
  double fused_plan_difference;     ///< max |P - fused P|
  double contributions_difference;  ///< max |direct + sum of contributions - gradient|
  InspectedLimit limit;
  InspectedConvergence convergence;
  std::vector<InspectedMode> modes;
  std::vector<InspectedJacobian> jacobians;  ///< empty when the matrix is too large
  size_t step_by_step_bytes;                 ///< what the tape keeps when every half-step is an op of its own
  std::vector<std::string> warnings;         ///< what deserves attention, in words

  const InspectedStep& last() const { return steps.back(); }
  /// The sum of the contributions of the last exponential and of half-steps `first`, ..., l.
  Numbers contributions_from(int first) const;
};

/// Scores (n, m) f64 within +-1e300, or -inf (which excludes an entry). ShapeError and InputError name what is required.
Inspection inspect(const Tensor& scores, const InspectionOptions& options);

}  // namespace sinkgrad
