// One call of sinkhorn as its kernels see it: masked scores, saved potentials, marginals, and the ways to compute it.
#pragma once
#include <limits>

#include "cuda/reduce.h"
#include "ops/sinkhorn_options.h"

namespace sinkgrad::cuda {

constexpr int kSinkhornStats = 4;  ///< half-steps taken, marginal error, largest entry, residual of the implicit solve

/// The scores (n, m) of one matrix; -inf where masked.
template <class T>
struct MaskedScores {
  Span<const T> values;
  Span<const int32_t> keys, queries, pairs;  ///< (m), (n), (n, m); absent: nothing is masked
  int64_t m;
  __device__ bool any_mask() const { return keys || queries || pairs; }
  __device__ bool excluded(int64_t i, int64_t j) const {
    return (keys && keys[j] != 0) || (queries && queries[i] != 0) || (pairs && pairs[i * m + j] != 0);
  }
  __device__ T operator()(int64_t i, int64_t j) const { return excluded(i, j) ? -infinity<T>() : static_cast<T>(values[i * m + j]); }
};

template <class T>
struct SinkhornCall {
  SinkhornCall(std::span<const View> in, std::span<const View> saved, const Attrs& attrs)
      : n(in[0].shape[-2]),
        m(in[0].shape[-1]),
        count(in[0].shape.count(0, in[0].shape.rank() - 2)),
        per_batch(in[0].shape.rank() == 2 ? 1 : in[0].shape.count(1, in[0].shape.rank() - 2)),
        iterations(attrs.integer("iterations")),
        tolerance(attrs.get("tolerance")),
        gradient(static_cast<SinkhornGradient>(attrs.integer("gradient"))),
        rows_sum_to_inverse_count(attrs.flag("rows_sum_to_inverse_count")),
        scores(span<const T>(in[0])),
        keys(span<const int32_t>(in[1])),
        queries(span<const int32_t>(in[2])),
        pairs(span<const int32_t>(in[3])),
        pairs_per_batch(in[3] && in[3].shape.rank() == 3),
        row(span<T>(saved[0])),
        column(span<T>(saved[1])),
        stats(span<T>(saved[2])) {}
  int64_t n, m, count, per_batch;  ///< count matrices, per_batch of them under one mask
  int64_t iterations;
  double tolerance;
  SinkhornGradient gradient;
  bool rows_sum_to_inverse_count;
  Span<const T> scores;
  Span<const int32_t> keys, queries, pairs;
  bool pairs_per_batch;
  Span<T> row, column, stats;  ///< (count, row_steps, n), (count, column_steps, m), (count, 4)

  __device__ __host__ int64_t row_steps() const { return (iterations + 1) / 2; }
  __device__ __host__ int64_t column_steps() const { return iterations / 2; }
  __device__ MaskedScores<T> matrix(int64_t i) const {
    const int64_t b = i / per_batch;
    return {scores.part(i * n * m, n * m), keys ? keys.part(b * m, m) : keys, queries ? queries.part(b * n, n) : queries,
            pairs ? pairs.part(pairs_per_batch ? b * n * m : 0, n * m) : pairs, m};
  }
  /// Potentials of matrix i after row step k, and after column step k: none (zeros) before the first one.
  __device__ Span<T> row_potentials(int64_t i, int64_t k) const { return row.part((i * row_steps() + k) * n, n); }
  __device__ Span<T> column_potentials(int64_t i, int64_t k) const { return k < 0 ? Span<T>{} : column.part((i * column_steps() + k) * m, m); }
  __device__ int64_t half_steps_taken(int64_t i) const { return static_cast<int64_t>(static_cast<T>(stats[i * kSinkhornStats])); }
};

/// What the lines of a matrix sum to: a plan has row sums 1 before it is multiplied by output_scale.
template <class T>
struct Marginals {
  T column_target, output_scale;
  int every_column_is_valid;
};

/// Counts the rows and columns that have an entry, by all threads of the block. A line is left at its first entry: without masks
/// this reads one row and one column.
template <class T>
__device__ Marginals<T> marginals(const SinkhornCall<T>& call, const MaskedScores<T>& scores, const Shared<int>& scratch) {
  int rows = 0, columns = 0;
  for (int64_t i = threadIdx.x; i < call.n; i += blockDim.x) {
    bool found = false;
    for (int64_t j = 0; j < call.m && !found; ++j) found = !(scores(i, j) == -infinity<T>());
    rows += found;
  }
  for (int64_t j = threadIdx.x; j < call.m; j += blockDim.x) {
    bool found = false;
    for (int64_t i = 0; i < call.n && !found; ++i) found = !(scores(i, j) == -infinity<T>());
    columns += found;
  }
  rows = block_sum(rows, scratch);
  columns = block_sum(columns, scratch);
  return {columns > 0 ? static_cast<T>(rows) / static_cast<T>(columns) : T(1),
          call.rows_sum_to_inverse_count && rows > 0 ? T(1) / static_cast<T>(rows) : T(1), columns == call.m};
}

/// |column sum / target - 1|. A column without mass has no error, unless every column should have some.
template <class T>
__device__ double column_error(T sum, const Marginals<T>& target) {
  return sum != T(0) || target.every_column_is_valid ? fabs(static_cast<double>(sum) / static_cast<double>(target.column_target) - 1) : 0.0;
}

/// exp in two instructions for floats. Its relative error is |x| / 2^24, and no sum here hangs on terms with a large |x|.
template <class T>
__device__ T fast_exp(T x) {
  if constexpr (sizeof(T) == 4)
    return exp2_fast(x * T(1.4426950408889634));
  else
    return exp(x);
}

/// Adds exp(x) without a branch: one exponential, whichever of x and the maximum is larger. Starts from no_terms().
template <class T>
__device__ LogSum<T> add_exp(const LogSum<T>& s, T x) {
  const T d = x - s.max, e = fast_exp(-fabs(d));
  return {d > 0 ? x : s.max, d > 0 ? s.sum * e + T(1) : s.sum + e};
}
/// Its maximum is finite, so that -inf adds 0 and not NaN.
template <class T>
constexpr T kLowest = -std::numeric_limits<T>::max();
template <class T>
__device__ LogSum<T> no_terms() {
  return {kLowest<T>, T(0)};
}

// Each returns false, having done nothing, when matrices of this size do not fit it; streamed and implicit take everything.
template <class T>
bool resident_sinkhorn_forward(const SinkhornCall<T>& call, Span<T> plan);
template <class T>
bool resident_sinkhorn_backward(const SinkhornCall<T>& call, Span<const T> dy, GradSpan<T> dx);
template <class T>
void streamed_sinkhorn_forward(const SinkhornCall<T>& call, Span<T> plan);
template <class T>
void streamed_sinkhorn_backward(const SinkhornCall<T>& call, Span<const T> dy, GradSpan<T> dx);
template <class T>
void implicit_sinkhorn_backward(const SinkhornCall<T>& call, Span<const T> dy, GradSpan<T> dx);

}  // namespace sinkgrad::cuda
