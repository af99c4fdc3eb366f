// Streaming Sinkhorn attention: the pieces that its forward, its backward and the implicit gradient are made of. Everything lies per
// matrix in scratch memory, in base 2 and padded to kPaddedRows; the padding and excluded lines have the potential -inf, hence mass 0.
#pragma once
#include "cuda/attention_stripe.h"

namespace sinkgrad::cuda::streaming {

__device__ __host__ inline int64_t padded(int64_t rows) { return (rows + kPaddedRows - 1) / kPaddedRows * kPaddedRows; }
/// Calls f.operator()<F>() with the format that a dtype and a precision ask for.
template <class T, class Body>
void with_format(Precision precision, Body&& body) {
  if constexpr (sizeof(T) == 8) {
    body.template operator()<Full<double>>();
  } else {
    if (precision == Precision::full) body.template operator()<Full<float>>();
    if (precision == Precision::tf32) body.template operator()<Tf32>();
    if (precision == Precision::bf16) body.template operator()<Bf16>();
  }
}
/// Calls body.operator()<O>() with the least number of 32 output columns that holds `columns`, or the largest there is.
template <class F, class Body>
void with_output_width(int64_t columns, Body&& body) {
  if constexpr (kDouble<F>) {
    body.template operator()<2>();
  } else {
    if (columns <= 32) return body.template operator()<1>();
    if (columns <= 64) return body.template operator()<2>();
    body.template operator()<4>();
  }
}

/// Which rows and columns have an entry that is not masked: flags (batch, padded) and how many of each (batch, 2).
struct ValidLines {
  ValidLines(Scratch& scratch, const AttentionShape& s, const AttentionMasksView& masks);
  Span<int32_t> rows, columns, counts;
  int heads;
  /// What a column of a plan with row sums 1 is to sum to.
  template <class Real>
  __device__ Real column_target(int64_t matrix) const {
    const int r = counts[matrix / heads * 2], c = counts[matrix / heads * 2 + 1];
    return c > 0 ? static_cast<Real>(r) / static_cast<Real>(c) : Real(1);
  }
  /// What a plan with row sums 1 is multiplied by.
  template <class Real>
  __device__ Real output_scale(const AttentionShape& s, int64_t matrix) const {
    const int r = counts[matrix / heads * 2];
    return s.rows_sum_to_inverse_count && r > 0 ? Real(1) / static_cast<Real>(r) : Real(1);
  }
  /// Whether column j takes part, of `width` padded ones.
  __device__ bool has_mass(int64_t matrix, int64_t j, int64_t width) const {
    return columns[matrix / heads * width + j] != 0 && counts[matrix / heads * 2] > 0;
  }
};

/// What an operand is made of: lines of `x` (B, lines, H dims), zero where they are not valid.
template <class T>
struct PackSource {
  Span<const T> x;
  int64_t lines = 0, dims = 0;
  Span<const int32_t> valid = {};  ///< (batch, lines padded)
  double factor = 1;
  Span<const int32_t> divisors = {};  ///< (batch, 2), if present the first one divides
};
/// Operands that are packed by one launch.
template <class F, class T>
struct PackJobs {
  static constexpr int kMost = 4;
  /// `more` columns (a multiple of 2) stay zero behind the operand's own, and rows have room for `outputs` columns.
  Packed<F> add(Scratch& scratch, const AttentionShape& s, const PackSource<T>& from, int64_t outputs = 0, int64_t more = 0);
  void run(const AttentionShape& s) const;
  PackSource<T> from[kMost];
  Packed<F> to[kMost];
  int count = 0;
};

/// Which of the steps kept of a line: none (0 is taken), the only one, the last row step, or the last pair of a row step and a column
/// step (the last column step, for columns).
enum class KeptStep : uint8_t { none, only, last_row, last_pair };
/// One number per row or column of each matrix, kept (matrices, steps, lines) in natural units, loaded in base 2 and padded.
template <class Real, class T>
struct LoadLines {
  Span<Real> to;
  Span<const T> from;
  int64_t lines = 0, steps = 0;
  Span<const int32_t> valid;
  KeptStep which = KeptStep::none;
  Real excluded = -infinity<Real>();
};
/// All by one launch.
template <class Real, class T>
void load_lines(const AttentionShape& s, Span<const int32_t> taken, const LoadLines<Real, T>& a, const LoadLines<Real, T>& b,
                const LoadLines<Real, T>& c, const LoadLines<Real, T>& d);

/// How a stripe kernel is launched. Chosen on the host by choose_stripes().
struct StripePlan {
  StripeGrid grid;
  Launch launch;
};
struct StripeNeeds {
  int64_t matrices = 0, rows = 0, columns = 0;  ///< rows are owned, columns streamed
  int row_tiles = 1;                            ///< of a warp, 16 rows each
  int tile = 0;                                 ///< columns of a score tile
  size_t real = 4;                              ///< bytes of a score
  int chunks = 1;
  size_t bytes_per_row = 0, bytes = 0;  ///< of shared memory: for each row of the stripe, and for everything else
  bool keep = false;                    ///< whether keeping scores saves their second computation; only then are there clusters
  int exchange = 0;                     ///< reals per row that the blocks of a cluster exchange in the place of kept scores
};
StripePlan choose_stripes(const StripeNeeds& needs);

/// What becomes of the row sums of a sweep, and which weight w the rows get in its column sums.
template <class Real>
struct RowRule {
  bool normalise = true;  ///< row <- row - log2(sum), w = 1 / sum; else w = (x + sign sum) / y
  Span<const Real> x, y;  ///< (matrices, n padded), absent: 0 and 1; where y is not positive, w is 0
  Real sign = 0;
  Span<Real> w;  ///< where w is kept, if anywhere
};

/// One pass over the scores s by stripes of rows, with e_ij = 2^(s_ij - max_i + potential_i + column_j):
///   sum_i = sum_j e_ij weight_j        partial (stripe, j) = sum_i w_i e_ij
template <class F>
struct Sweep {
  using Real = typename F::Value;
  AttentionShape shape;
  AttentionMasksView masks;    ///< only the pairs matter here
  Span<const int32_t> active;  ///< (matrices), 0 leaves a matrix out; absent: none is left out
  Packed<F> q, k;              ///< their products are the scores in base 2
  RowState<Real> rows;
  Span<const Real> column, weight;  ///< (matrices, m padded); no weight: 1
  bool first = false;               ///< the first row step, which finds the rows' maxima
  int64_t step = 0;                 ///< which row step this is
  RowRule<Real> rule;
  Span<Real> partial;  ///< (matrices, stripes, m padded); absent: no column sums are wanted
};
template <class F>
StripePlan plan_sweep(const AttentionShape& s, const Packed<F>& q, const Packed<F>& k);
template <class F>
void launch_sweep(const StripePlan& plan, const Sweep<F>& a);

/// The last pass: the plan p_ij = e_ij, or e_ij / sum_i where an odd number of half-steps is taken, and O = p V.
template <class F>
struct Output {
  using Real = typename F::Value;
  AttentionShape shape;
  AttentionMasksView masks;  ///< only the pairs matter here
  ValidLines valid;
  Span<const int32_t> taken;  ///< (matrices)
  Packed<F> q, k, v;
  RowState<Real> rows;
  Span<const Real> column;
  bool first = false;   ///< with the only row step there is
  Span<Real> partial;   ///< (matrices, stripes, m padded): column sums of p
  Span<Real> extremes;  ///< (matrices, stripes, cluster, 2): largest p, and largest |row sum - 1| of plans that end on columns
  Span<Real> row_sums;  ///< (matrices, n padded), if wanted
  Span<Real> out;       ///< (B, N, H E)
  Span<Real> plan;      ///< (B, H, N, M), if wanted
};
/// `pairs`: whether there is a mask of pairs.
template <class F>
StripePlan plan_output(const AttentionShape& s, const Packed<F>& q, const Packed<F>& k, bool pairs);
template <class F>
void launch_output(const StripePlan& plan, const Output<F>& a);

/// Column potentials, column sums of a pass and what follows from them: the state of the iteration, per matrix.
template <class Real>
struct ColumnState {
  /// Also sets the rows' potentials to their start: 0, or -inf for excluded ones.
  ColumnState(Scratch& scratch, const AttentionShape& s, const ValidLines& valid, Span<Real> row);
  /// From the sums of a sweep, before column step `step`: stops matrices whose columns are within the tolerance; for the others
  /// column <- column + log2(target) - log2(sum). The first sums may underflow: those matrices are marked unsafe instead.
  void step(Span<const Real> partial, int64_t parts, Span<Real> kept, int64_t step) const;
  /// Half-steps taken, marginal error and largest entry, from the last pass's sums and extremes (matrices, count, 2).
  void measure(Span<const Real> partial, int64_t parts, Span<const Real> extremes, int64_t count, Span<Real> stats) const;
  /// The step of column j with potential `before` and the base-2 logarithm of its sum.
  __device__ void update(int64_t matrix, int64_t j, Real before, Real log_sum, const Span<Real>& kept, int64_t step) const {
    const int64_t at = matrix * padded(shape.m) + j;
    Real natural = 0;
    if (valid.has_mass(matrix, j, padded(shape.m))) {
      natural = (before + (log2(valid.template column_target<Real>(matrix)) - log_sum)) * Real(kLn2);
      column[at] = natural * Real(kLog2E);
    }
    kept[(matrix * shape.column_steps() + step) * shape.m + j] = natural;
  }

  AttentionShape shape;
  ValidLines valid;
  Span<Real> column, sums;       ///< (matrices, m padded)
  Span<Real> errors;             ///< (matrices, chunks): max |sum / target - 1|
  Span<int32_t> underflows;      ///< (matrices, chunks)
  Span<int32_t> taken, running;  ///< (matrices)
  int64_t chunks;
};
/// The first column step again, with running maxima, for matrices in which a sum has underflowed.
template <class F>
void add_columns_safely(const AttentionShape& s, const Packed<F>& q, const Packed<F>& k, const RowState<typename F::Value>& rows,
                        const ColumnState<typename F::Value>& columns, Span<typename F::Value> kept);

}  // namespace sinkgrad::cuda::streaming
