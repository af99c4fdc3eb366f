// What the parts of an inspection share: the matrix without its excluded rows and columns, and runs of the fused op.
#pragma once
#include "nn/inspect/inspection.h"
#include "ops/ops.h"

namespace sinkgrad {

/// The rectangle (n, m) that takes part in the normalisations, and its place in the matrix as given.
struct Problem {
  int64_t full_n, full_m;
  std::vector<int64_t> rows, columns;
  Tensor full_scores, full_cotangent;  ///< (full_n, full_m) f64
  Tensor scores, cotangent;            ///< (n, m) f64; scores shifted by their row maxima, which changes nothing but f
  Numbers row_maxima;                  ///< (n)

  Problem(const Tensor& scores, const InspectionOptions& options);
  int64_t n() const { return static_cast<int64_t>(rows.size()); }
  int64_t m() const { return static_cast<int64_t>(columns.size()); }
  double column_target() const { return static_cast<double>(n()) / static_cast<double>(m()); }
  /// (n, m) -> (full_n, full_m), (n) -> (full_n), (m) -> (full_m): zeros elsewhere.
  Numbers spread(const Numbers& matrix) const;
  Numbers spread_rows(const Numbers& values) const;
  Numbers spread_columns(const Numbers& values) const;
};

/// exp(x + f + g) of a matrix (n, m).
Numbers plan_of(const Tensor& x, const Numbers& f, const Numbers& g);
/// max_i |row sum - 1| and max_j |column sum m/n - 1| of a plan without excluded lines.
double row_error(const Numbers& plan, int64_t n, int64_t m);
double column_error(const Numbers& plan, int64_t n, int64_t m);

/// One forward and backward of the op `sinkhorn` in f64.
struct FusedRun {
  Numbers plan, gradient;
  SinkhornReport report;
  size_t bytes_kept;
};
/// On the matrix as given, with its masks.
FusedRun run_fused(const Problem& problem, const SinkhornOptions& options);

/// (a, b) / (|a| |b|); 1 when both are 0, 0 when one is.
double cosine(const Numbers& a, const Numbers& b);

InspectedLimit find_limit(const Problem& problem);
InspectedConvergence converge(const Problem& problem, int half_steps, const InspectedLimit& limit);
std::vector<InspectedMode> compare_modes(const Problem& problem, int half_steps);
std::vector<InspectedJacobian> jacobians(const Problem& problem, int half_steps, int limit_half_steps);
std::vector<std::string> warnings_of(const Inspection& inspection);

}  // namespace sinkgrad
