// Between the products of the backward of streaming Sinkhorn attention: dot products of lines, the half-steps walked backwards, and the columns of
// A and B behind those of dO and V. Everything here is O(n) per half-step; sums over stripes are in a fixed order.
#include <algorithm>

#include "cuda/attention_streaming_backward.h"

namespace sinkgrad::cuda::streaming {
namespace {

constexpr double kSafeDrift = 40;  // of potentials, in natural units: the factors of two of them stay within f32

/// The potential of a line after `pair` (0 before the first one), in base 2.
template <class Real>
__device__ Real potential_of(const Span<const Real>& kept, int64_t steps, int64_t lines, int64_t matrix, int64_t step, int64_t i) {
  return step < 0 ? Real(0) : kept[(matrix * steps + step) * lines + i] * Real(kLog2E);
}

template <class T>
__global__ void attention_load_taken(Span<const T> stats, Span<int32_t> taken) {
  for (int64_t matrix = thread_index(); matrix < taken.count; matrix += thread_count())
    taken[matrix] = static_cast<int32_t>(static_cast<T>(stats[4 * matrix]));
}

/// A warp per line.
template <class F, class A, class B>
__global__ void attention_multiply_lines(AttentionShape s, LineProducts<F, A, B> p) {
  using Real = typename F::Value;
  const int64_t rows = padded(p.lines);
  for (int64_t k = thread_index() / kWarp; k < s.matrices() * rows; k += thread_count() / kWarp) {
    const int64_t b = k / rows / s.heads, h = k / rows % s.heads, i = k % rows, at = ((b * p.lines + i) * s.heads + h) * p.dims;
    const bool valid = p.valid[b * rows + i] != 0;
    Real sum = 0;
    if (valid)
      for (int64_t c = lane_index(); c < p.dims; c += kWarp)
        sum += rounded<F>(static_cast<Real>(static_cast<A>(p.a[at + c]))) * static_cast<Real>(static_cast<B>(p.b[at + c]));
    sum = warp_sum(sum);
    if (lane_index() != 0) continue;
    p.to[k] = valid && p.less ? sum - p.less[k] : sum;
    if (!p.taken) continue;
    const bool ends_on_rows = p.taken[k / rows] % 2 == 1;
    p.direct[k] = ends_on_rows ? Real(0) : sum;
    p.ranked[k] = ends_on_rows ? sum : Real(0);
  }
}

/// A thread per row, then per column.
template <class Real>
__global__ void attention_prepare_round(RoundState<Real> a, int64_t round, Span<const Real> partial, int64_t parts) {
  const AttentionShape& s = a.shape;
  const int64_t n = padded(s.n), m = padded(s.m);
  for (int64_t k = thread_index(); k < s.matrices() * (n + m); k += thread_count()) {
    const int64_t matrix = k / (n + m), i = k % (n + m), batch = matrix / s.heads;
    const int64_t pair = a.rounds.taken[matrix] / 2 - 1 - round;
    if (i == 0) a.active[matrix] = pair >= 0;
    if (i < n) {
      const bool valid = a.valid.rows[batch * n + i] != 0;
      a.row[matrix * n + i] = valid ? potential_of(a.rounds.row, s.row_steps(), s.n, matrix, pair, i) : -infinity<Real>();
      continue;
    }
    const int64_t j = i - n;
    const bool valid = a.valid.columns[batch * m + j] != 0;
    Real h = 0, potential = -infinity<Real>();
    if (valid) {
      potential = potential_of(a.rounds.column, s.column_steps(), s.m, matrix, pair, j);
      if (round == 0) {
        h = a.h[matrix * m + j];
      } else if (pair >= 0) {
        for (int64_t part = 0; part < parts; ++part) h -= partial[(matrix * parts + part) * m + j];
        h *= exp2_fast(potential - potential_of(a.rounds.column, s.column_steps(), s.m, matrix, pair + 1, j));
      }
    }
    a.column[matrix * m + j] = potential;
    a.weight[(round * s.matrices() + matrix) * m + j] = h / a.valid.template column_target<Real>(matrix);
  }
}

/// A thread per line: the largest |f_k - f_last|, |g_k - g_last| and |g_last| (g before the first column step is 0) of a block of lines.
template <class Real>
__global__ void attention_drifts(AttentionShape s, Rounds<Real> a, int64_t chunks, Span<int32_t> flags) {
  STATIC_SHARED(int, scratch, kWarp);
  const int64_t matrix = blockIdx.x / chunks, i = blockIdx.x % chunks * blockDim.x + threadIdx.x, pairs = a.taken[matrix] / 2;
  Real drift = 0;
  if (i < s.n) {
    const Real last = potential_of(a.row, s.row_steps(), s.n, matrix, (a.taken[matrix] + 1) / 2 - 1, i);
    for (int64_t pair = 0; pair < pairs; ++pair) drift = maximum<Real>(fabs(potential_of(a.row, s.row_steps(), s.n, matrix, pair, i) - last), drift);
  } else if (i < s.n + s.m) {
    const Real last = potential_of(a.column, s.column_steps(), s.m, matrix, pairs - 1, i - s.n);
    for (int64_t pair = -1; pair < pairs; ++pair)
      drift = maximum<Real>(fabs(potential_of(a.column, s.column_steps(), s.m, matrix, pair, i - s.n) - last), drift);
  }
  const int drifts = block_reduce(static_cast<int>(drift > Real(kSafeDrift * kLog2E)), Max{}, scratch);
  if (threadIdx.x == 0) flags[blockIdx.x] = drifts;
}

/// A warp per matrix.
__global__ void attention_any(Span<const int32_t> flags, int64_t chunks, Span<int32_t> any) {
  for (int64_t matrix = thread_index() / kWarp; matrix < any.count; matrix += thread_count() / kWarp) {
    bool found = false;
    for (int64_t k = lane_index(); k < chunks; k += kWarp) found = found || flags[matrix * chunks + k] != 0;
    found = warp_any(found);
    if (lane_index() == 0) any[matrix] = found;
  }
}

/// Element `rank` of row i of A, or of row i of B.
template <class Real>
__device__ Real rank_value(const RankColumns<Real>& a, bool is_row, int64_t matrix, int64_t i, int64_t rank) {
  const AttentionShape& s = a.shape;
  const int64_t at = matrix * padded(is_row ? s.n : s.m) + i;
  if (a.kind == Ranks::implicit) return is_row == (rank == 0) ? static_cast<Real>((is_row ? a.row : a.column)[at]) : Real(1);
  const Rounds<Real>& r = a.rounds;
  const int64_t taken = r.taken[matrix], last_pair = taken / 2 - 1;
  if (a.kind == Ranks::frozen) {
    if (is_row) return a.row[at];
    if (taken % 2 == 1) return Real(1);
    return exp2_fast(potential_of(r.column, s.column_steps(), s.m, matrix, last_pair - 1, i) -
                     potential_of(r.column, s.column_steps(), s.m, matrix, last_pair, i));
  }
  if (taken % 2 == 1) {
    if (rank == 0) return is_row ? static_cast<Real>(a.row[at]) : Real(1);
    --rank;
  }
  const int64_t round = rank / 2, pair = last_pair - round;
  if (pair < 0 || r.drifts[matrix] != 0) return Real(0);
  const int64_t at_round = round * s.matrices() * padded(is_row ? s.n : s.m) + at;
  if (is_row) {
    const Real rho =
        exp2_fast(potential_of(r.row, s.row_steps(), s.n, matrix, pair, i) - potential_of(r.row, s.row_steps(), s.n, matrix, (taken + 1) / 2 - 1, i));
    return rank % 2 == 0 ? rho : rho * r.df[at_round];
  }
  const Real g =
      potential_of(r.column, s.column_steps(), s.m, matrix, pair - rank % 2, i) - potential_of(r.column, s.column_steps(), s.m, matrix, last_pair, i);
  return rank % 2 == 0 ? exp2_fast(g) * r.weight[at_round] : exp2_fast(g);
}

/// Column `column` behind an operand: of -A, or of B.
template <class F>
__device__ typename F::Value rank_column(const RankColumns<typename F::Value>& a, bool is_row, int64_t matrix, int64_t i, int64_t column,
                                         int64_t ranks) {
  constexpr int parts = kRankParts<F>;
  if (column / parts >= ranks) return 0;
  const typename F::Value x = rank_value(a, is_row, matrix, i, column / parts), signed_x = is_row ? -x : x;
  if constexpr (parts == 1) return signed_x;
  const typename F::Value high = rounded<F>(signed_x);
  return column % parts == (is_row ? 2 : 1) ? signed_x - high : high;
}

/// A thread per cell.
template <class F>
__device__ void append_ranks_to(const Packed<F>& to, bool is_row, int first_cell, int cells, int64_t ranks, const RankColumns<typename F::Value>& a) {
  const int64_t lines = is_row ? a.shape.n : a.shape.m;
  for (int64_t k = thread_index(); k < a.shape.matrices() * lines * cells; k += thread_count()) {
    const int64_t matrix = k / cells / lines, i = k / cells % lines, column = k % cells * 2;
    if ((is_row ? a.valid.rows : a.valid.columns)[matrix / a.shape.heads * to.rows + i] == 0) continue;
    to.cells[(matrix * to.rows + i) * to.width + first_cell + column / 2] =
        F::cell(rank_column<F>(a, is_row, matrix, i, column, ranks), rank_column<F>(a, is_row, matrix, i, column + 1, ranks));
  }
}
template <class F>
__global__ void attention_append_ranks(Packed<F> rows, Packed<F> columns, int first_cell, int cells, int64_t ranks,
                                       RankColumns<typename F::Value> a) {
  append_ranks_to(rows, true, first_cell, cells, ranks, a);
  append_ranks_to(columns, false, first_cell, cells, ranks, a);
}

template <class Real, class T>
__global__ void attention_add_gradient(Span<const Real> from, GradSpan<T> to) {
  for (int64_t i = thread_index(); i < from.count; i += thread_count()) to.put(i, static_cast<T>(static_cast<Real>(from[i])));
}

}  // namespace

template <class T>
Span<int32_t> load_taken(Scratch& scratch, const AttentionShape& s, Span<const T> stats) {
  const Span<int32_t> taken = scratch.take<int32_t>(s.matrices());
  launch(KERNEL(attention_load_taken<T>), grid_stride(s.matrices()), stats, taken);
  return taken;
}

template <class F, class A, class B>
void multiply_lines(const AttentionShape& s, const LineProducts<F, A, B>& a) {
  launch(KERNEL(attention_multiply_lines<F, A, B>), grid_stride(s.matrices() * padded(a.lines), 256, 256 / kWarp), s, a);
}

template <class Real>
void RoundState<Real>::prepare(int64_t round, Span<const Real> partial, int64_t parts) const {
  launch(KERNEL(attention_prepare_round<Real>), grid_stride(shape.matrices() * (padded(shape.n) + padded(shape.m))), *this, round, partial, parts);
}

template <class Real>
void find_drifts(Scratch& scratch, const AttentionShape& s, const Rounds<Real>& rounds, Span<int32_t> drifts) {
  const int64_t chunks = (s.n + s.m + 255) / 256;
  const Span<int32_t> flags = scratch.take<int32_t>(s.matrices() * chunks);
  launch(KERNEL(attention_drifts<Real>), {.blocks = s.matrices() * chunks}, s, rounds, chunks, flags);
  launch(KERNEL(attention_any), grid_stride(s.matrices(), 256, 256 / kWarp), flags, chunks, drifts);
}

template <class F>
void append_ranks(const Packed<F>& rows, const Packed<F>& columns, int64_t ranks, const RankColumns<typename F::Value>& a) {
  const int cells = static_cast<int>(rank_columns<F>(ranks) / 2);
  launch(KERNEL(attention_append_ranks<F>), grid_stride(a.shape.matrices() * std::max(a.shape.n, a.shape.m) * cells), rows, columns,
         static_cast<int>((a.shape.e + 1) / 2), cells, ranks, a);
}

template <class Real, class T>
void add_gradient(Span<const Real> from, const GradSpan<T>& to) {
  launch(KERNEL(attention_add_gradient<Real, T>), grid_stride(from.count), from, to);
}

template Span<int32_t> load_taken(Scratch&, const AttentionShape&, Span<const float>);
template Span<int32_t> load_taken(Scratch&, const AttentionShape&, Span<const double>);
template void multiply_lines(const AttentionShape&, const LineProducts<Full<float>, float, float>&);
template void multiply_lines(const AttentionShape&, const LineProducts<Tf32, float, float>&);
template void multiply_lines(const AttentionShape&, const LineProducts<Bf16, float, float>&);
template void multiply_lines(const AttentionShape&, const LineProducts<Full<double>, double, double>&);
template void multiply_lines(const AttentionShape&, const LineProducts<Full<double>, float, double>&);
template struct RoundState<float>;
template struct RoundState<double>;
template void find_drifts(Scratch&, const AttentionShape&, const Rounds<float>&, Span<int32_t>);
template void find_drifts(Scratch&, const AttentionShape&, const Rounds<double>&, Span<int32_t>);
template void append_ranks(const Packed<Full<float>>&, const Packed<Full<float>>&, int64_t, const RankColumns<float>&);
template void append_ranks(const Packed<Full<double>>&, const Packed<Full<double>>&, int64_t, const RankColumns<double>&);
template void append_ranks(const Packed<Tf32>&, const Packed<Tf32>&, int64_t, const RankColumns<float>&);
template void append_ranks(const Packed<Bf16>&, const Packed<Bf16>&, int64_t, const RankColumns<float>&);
template void add_gradient(Span<const float>, const GradSpan<float>&);
template void add_gradient(Span<const double>, const GradSpan<double>&);
template void add_gradient(Span<const double>, const GradSpan<float>&);

}  // namespace sinkgrad::cuda::streaming
