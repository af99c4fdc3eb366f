// Between the passes of streaming Sinkhorn attention: column sums from partial sums in a fixed order, column potentials, the decision to
// stop, the statistics. A thread per column; neighbours in a warp read neighbours in memory.
#include "cuda/attention_streaming.h"

namespace sinkgrad::cuda::streaming {
namespace {

constexpr int kChunk = 256;  // columns of a block

/// Sums below it may have lost terms that do not round to nothing.
template <class Real>
constexpr Real kSmallestSum = sizeof(Real) == 4 ? Real(1e-25) : Real(1e-280);

/// A thread per row, then per column.
template <class Real>
__global__ void attention_start(ColumnState<Real> a, Span<Real> row) {
  const int64_t n = padded(a.shape.n), m = padded(a.shape.m);
  for (int64_t k = thread_index(); k < a.shape.matrices() * (n + m); k += thread_count()) {
    const int64_t matrix = k / (n + m), batch = matrix / a.shape.heads, i = k % (n + m);
    if (i < n)
      row[matrix * n + i] = a.valid.rows[batch * n + i] != 0 ? Real(0) : -infinity<Real>();
    else
      a.column[matrix * m + i - n] = a.valid.columns[batch * m + i - n] != 0 ? Real(0) : -infinity<Real>();
  }
  for (int64_t matrix = thread_index(); matrix < a.shape.matrices(); matrix += thread_count()) {
    a.taken[matrix] = static_cast<int32_t>(a.shape.iterations);
    a.running[matrix] = 1;
  }
}

/// `update`: takes the column step at once. `every`: also of matrices that have stopped.
template <class Real>
__global__ void attention_column_sums(ColumnState<Real> a, Span<const Real> partial, int64_t parts, Span<Real> kept, int64_t step, bool update,
                                      bool every) {
  STATIC_SHARED(Real, errors, kWarp);
  STATIC_SHARED(int, underflows, kWarp);
  const int64_t matrix = blockIdx.x / a.chunks, j = blockIdx.x % a.chunks * kChunk + threadIdx.x, width = padded(a.shape.m);
  if (!every && a.running[matrix] == 0) return;
  Real error = 0;
  int underflow = 0;
  if (j < a.shape.m) {
    Real sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += partial[(matrix * parts + part) * width + j];
    if (a.valid.has_mass(matrix, j, width)) {
      error = fabs(sum / a.valid.template column_target<Real>(matrix) - 1);
      underflow = step == 0 && !(sum >= kSmallestSum<Real>);
    }
    if (update)
      a.update(matrix, j, a.column[matrix * width + j], log2(sum), kept, step);
    else
      a.sums[matrix * width + j] = sum;
  }
  error = block_reduce(error, Max{}, errors);
  underflow = block_reduce(underflow, Max{}, underflows);
  if (threadIdx.x == 0) {
    a.errors[blockIdx.x] = error;
    a.underflows[blockIdx.x] = underflow;
  }
}

/// Stops matrices whose columns are within the tolerance after `taken` half-steps. A warp per matrix.
template <class Real>
__global__ void attention_decide(ColumnState<Real> a, int32_t taken) {
  for (int64_t matrix = thread_index() / kWarp; matrix < a.shape.matrices(); matrix += thread_count() / kWarp) {
    if (a.running[matrix] == 0) continue;
    Real error = 0;
    for (int64_t k = lane_index(); k < a.chunks; k += kWarp) error = Max{}(error, static_cast<Real>(a.errors[matrix * a.chunks + k]));
    error = warp_max(error);
    warp_sync();  // all lanes have read running
    if (lane_index() == 0 && static_cast<double>(error) <= a.shape.tolerance) {
      a.taken[matrix] = taken;
      a.running[matrix] = 0;
    }
  }
}

template <class Real>
__global__ void attention_column_update(ColumnState<Real> a, Span<Real> kept, int64_t step) {
  const int64_t width = padded(a.shape.m);
  for (int64_t k = thread_index(); k < a.shape.matrices() * a.shape.m; k += thread_count()) {
    const int64_t matrix = k / a.shape.m, at = matrix * width + k % a.shape.m;
    if (a.running[matrix] != 0) a.update(matrix, k % a.shape.m, a.column[at], log2(static_cast<Real>(a.sums[at])), kept, step);
  }
}

/// A warp per matrix.
template <class Real>
__global__ void attention_measure(ColumnState<Real> a, Span<const Real> extremes, int64_t count, Span<Real> stats) {
  for (int64_t matrix = thread_index() / kWarp; matrix < a.shape.matrices(); matrix += thread_count() / kWarp) {
    Real largest = 0, row_error = 0, column_error = 0;
    for (int64_t k = lane_index(); k < count; k += kWarp) {
      largest = Max{}(largest, static_cast<Real>(extremes[(matrix * count + k) * 2]));
      row_error = Max{}(row_error, static_cast<Real>(extremes[(matrix * count + k) * 2 + 1]));
    }
    for (int64_t k = lane_index(); k < a.chunks; k += kWarp) column_error = Max{}(column_error, static_cast<Real>(a.errors[matrix * a.chunks + k]));
    largest = warp_max(largest);
    row_error = warp_max(row_error);
    column_error = warp_max(column_error);
    if (lane_index() != 0) continue;
    const int32_t taken = a.taken[matrix];
    stats[4 * matrix] = static_cast<Real>(taken);
    stats[4 * matrix + 1] = taken % 2 == 1 ? column_error : row_error;
    stats[4 * matrix + 2] = largest;
    stats[4 * matrix + 3] = 0;
  }
}

}  // namespace

template <class Real>
ColumnState<Real>::ColumnState(Scratch& scratch, const AttentionShape& s, const ValidLines& lines, Span<Real> row)
    : shape(s), valid(lines), chunks((s.m + kChunk - 1) / kChunk) {
  column = scratch.take<Real>(s.matrices() * padded(s.m));
  sums = scratch.take<Real>(s.matrices() * padded(s.m));
  errors = scratch.take<Real>(s.matrices() * chunks);
  underflows = scratch.take<int32_t>(s.matrices() * chunks);
  taken = scratch.take<int32_t>(s.matrices());
  running = scratch.take<int32_t>(s.matrices());
  launch(KERNEL(attention_start<Real>), grid_stride(s.matrices() * (padded(s.n) + padded(s.m) + 1)), *this, row);
}

template <class Real>
void ColumnState<Real>::step(Span<const Real> partial, int64_t parts, Span<Real> kept, int64_t step) const {
  const bool may_stop = shape.tolerance > 0;
  launch(KERNEL(attention_column_sums<Real>), {.blocks = shape.matrices() * chunks, .threads = kChunk}, *this, partial, parts, kept, step, !may_stop,
         false);
  if (!may_stop) return;
  launch(KERNEL(attention_decide<Real>), grid_stride(shape.matrices(), 256, 256 / kWarp), *this, static_cast<int32_t>(2 * step + 1));
  launch(KERNEL(attention_column_update<Real>), grid_stride(shape.matrices() * shape.m), *this, kept, step);
}

template <class Real>
void ColumnState<Real>::measure(Span<const Real> partial, int64_t parts, Span<const Real> extremes, int64_t count, Span<Real> stats) const {
  launch(KERNEL(attention_column_sums<Real>), {.blocks = shape.matrices() * chunks, .threads = kChunk}, *this, partial, parts, Span<Real>{},
         int64_t{-1}, false, true);
  launch(KERNEL(attention_measure<Real>), grid_stride(shape.matrices(), 256, 256 / kWarp), *this, extremes, count, stats);
}

template struct ColumnState<float>;
template struct ColumnState<double>;

}  // namespace sinkgrad::cuda::streaming
