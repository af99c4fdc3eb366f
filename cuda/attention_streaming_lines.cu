// Before the stripes: which lines of a matrix take part, operands packed for tensor cores (rounded, padded with zeros, excluded lines
// zero, so that kernels behind need no masks and no bounds), potentials in base 2. All of it costs O(n d): inputs are read once and written once.
#include <algorithm>

#include "cuda/attention_streaming.h"

namespace sinkgrad::cuda::streaming {
namespace {

/// A warp per line of a batch entry; it stops at the first entry that is not masked.
__global__ void attention_valid_lines(AttentionShape s, AttentionMasksView masks, Span<int32_t> rows, Span<int32_t> columns, Span<int32_t> counts,
                                      int64_t n_padded, int64_t m_padded) {
  const int64_t lines = n_padded + m_padded;
  for (int64_t k = thread_index() / kWarp; k < s.batch * lines; k += thread_count() / kWarp) {
    const int64_t b = k / lines;
    const bool is_row = k % lines < n_padded;
    const int64_t i = is_row ? k % lines : k % lines - n_padded, across = is_row ? s.m : s.n;
    bool found = false;
    if (i < (is_row ? s.n : s.m) && !(is_row ? masks.query(s, b, i) : masks.key(s, b, i)))
      for (int64_t first = 0; first < across && !found; first += kWarp) {
        const int64_t j = first + lane_index();
        found = warp_any(j < across && !(is_row ? masks.key(s, b, j) || masks.pair(s, b, i, j) : masks.query(s, b, j) || masks.pair(s, b, j, i)));
      }
    if (lane_index() != 0) continue;
    if (k % lines == 0 && !masks.keys && !masks.queries && !masks.pairs) {  // nothing is left to count
      counts[2 * b] = static_cast<int32_t>(s.m > 0 ? s.n : 0);
      counts[2 * b + 1] = static_cast<int32_t>(s.n > 0 ? s.m : 0);
    }
    if (is_row)
      rows[b * n_padded + i] = found;
    else
      columns[b * m_padded + i] = found;
  }
}

__global__ void attention_count_lines(Span<const int32_t> rows, Span<const int32_t> columns, Span<int32_t> counts, int64_t n_padded,
                                      int64_t m_padded) {
  STATIC_SHARED(int, scratch, kWarp);
  int r = 0, c = 0;
  for (int64_t i = threadIdx.x; i < n_padded; i += blockDim.x) r += rows[blockIdx.x * n_padded + i];
  for (int64_t j = threadIdx.x; j < m_padded; j += blockDim.x) c += columns[blockIdx.x * m_padded + j];
  r = block_sum(r, scratch);
  c = block_sum(c, scratch);
  if (threadIdx.x == 0) {
    counts[2 * blockIdx.x] = r;
    counts[2 * blockIdx.x + 1] = c;
  }
}

/// A warp per packed row, of one operand after the other.
template <class F, class T>
__global__ void attention_pack(AttentionShape s, PackJobs<F, T> jobs) {
  using Real = typename F::Value;
#pragma unroll
  for (int job = 0; job < jobs.kMost; ++job) {
    if (job == jobs.count) return;
    const PackSource<T>& a = jobs.from[job];
    const Packed<F>& to = jobs.to[job];
    for (int64_t k = thread_index() / kWarp; k < s.matrices() * to.rows; k += thread_count() / kWarp) {
      const int64_t b = k / to.rows / s.heads, h = k / to.rows % s.heads, i = k % to.rows, from = ((b * a.lines + i) * s.heads + h) * a.dims;
      const bool valid = a.valid[b * to.rows + i] != 0;
      Real factor = static_cast<Real>(a.factor);
      if (a.divisors && a.divisors[2 * b] > 0) factor /= static_cast<Real>(static_cast<int32_t>(a.divisors[2 * b]));
      for (int cell = lane_index(); cell < to.width; cell += kWarp) {
        const int64_t column = 2 * cell;
        Real x = 0, y = 0;
        if (valid && column < a.dims) x = static_cast<Real>(static_cast<T>(a.x[from + column])) * factor;
        if (valid && column + 1 < a.dims) y = static_cast<Real>(static_cast<T>(a.x[from + column + 1])) * factor;
        to.cells[k * to.width + cell] = F::cell(x, y);
      }
    }
  }
}

template <class Real, class T>
__device__ void load_lines(const AttentionShape& s, const Span<const int32_t>& taken, const LoadLines<Real, T>& a) {
  if (!a.to) return;
  const int64_t rows = padded(a.lines);
  for (int64_t k = thread_index(); k < s.matrices() * rows; k += thread_count()) {
    const int64_t matrix = k / rows, i = k % rows;
    int64_t step = -1;
    if (a.which == KeptStep::only) step = 0;
    if (a.which == KeptStep::last_row) step = (taken[matrix] + 1) / 2 - 1;
    if (a.which == KeptStep::last_pair) step = taken[matrix] / 2 - 1;
    Real v = a.excluded;
    if (a.valid[matrix / s.heads * rows + i] != 0)
      v = step < 0 ? Real(0) : static_cast<Real>(static_cast<T>(a.from[(matrix * a.steps + step) * a.lines + i])) * Real(kLog2E);
    a.to[k] = v;
  }
}
template <class Real, class T>
__global__ void attention_load_lines(AttentionShape s, Span<const int32_t> taken, LoadLines<Real, T> a, LoadLines<Real, T> b, LoadLines<Real, T> c,
                                     LoadLines<Real, T> d) {
  load_lines(s, taken, a);
  load_lines(s, taken, b);
  load_lines(s, taken, c);
  load_lines(s, taken, d);
}

int round_up(int64_t x, int64_t to) { return static_cast<int>((x + to - 1) / to * to); }

}  // namespace

ValidLines::ValidLines(Scratch& scratch, const AttentionShape& s, const AttentionMasksView& masks)
    : rows(scratch.take<int32_t>(s.batch * padded(s.n))),
      columns(scratch.take<int32_t>(s.batch * padded(s.m))),
      counts(scratch.take<int32_t>(s.batch * 2)),
      heads(static_cast<int>(s.heads)) {
  launch(KERNEL(attention_valid_lines), grid_stride(s.batch * (padded(s.n) + padded(s.m)), 256, 256 / kWarp), s, masks, rows, columns, counts,
         padded(s.n), padded(s.m));
  if (masks.keys || masks.queries || masks.pairs)
    launch(KERNEL(attention_count_lines), {.blocks = s.batch}, rows, columns, counts, padded(s.n), padded(s.m));
}

template <class F, class T>
Packed<F> PackJobs<F, T>::add(Scratch& scratch, const AttentionShape& s, const PackSource<T>& source, int64_t outputs, int64_t more) {
  Packed<F> p{.rows = padded(source.lines)};
  p.used = std::max(kStepCells<F>, round_up((source.dims + 1) / 2 + more / 2, kStepCells<F>));
  p.width = p.used;
  if (outputs > 0) with_output_width<F>(outputs, [&]<int O>() { p.width = std::max(p.used, round_up((outputs + 1) / 2, 16 * O)); });
  p.cells = scratch.take<typename F::Cell>(s.matrices() * p.rows * p.width);
  from[count] = source;
  to[count++] = p;
  return p;
}
template <class F, class T>
void PackJobs<F, T>::run(const AttentionShape& s) const {
  int64_t rows = 0;
  for (int k = 0; k < count; ++k) rows = std::max(rows, to[k].rows);
  launch(KERNEL(attention_pack<F, T>), grid_stride(s.matrices() * rows, 256, 256 / kWarp), s, *this);
}

template <class Real, class T>
void load_lines(const AttentionShape& s, Span<const int32_t> taken, const LoadLines<Real, T>& a, const LoadLines<Real, T>& b,
                const LoadLines<Real, T>& c, const LoadLines<Real, T>& d) {
  launch(KERNEL(attention_load_lines<Real, T>), grid_stride(s.matrices() * padded(std::max(s.n, s.m))), s, taken, a, b, c, d);
}

template struct PackJobs<Full<float>, float>;
template struct PackJobs<Tf32, float>;
template struct PackJobs<Bf16, float>;
template struct PackJobs<Full<double>, double>;
template struct PackJobs<Full<double>, float>;
template void load_lines(const AttentionShape&, Span<const int32_t>, const LoadLines<float, float>&, const LoadLines<float, float>&,
                         const LoadLines<float, float>&, const LoadLines<float, float>&);
template void load_lines(const AttentionShape&, Span<const int32_t>, const LoadLines<double, double>&, const LoadLines<double, double>&,
                         const LoadLines<double, double>&, const LoadLines<double, double>&);
template void load_lines(const AttentionShape&, Span<const int32_t>, const LoadLines<double, float>&, const LoadLines<double, float>&,
                         const LoadLines<double, float>&, const LoadLines<double, float>&);

}  // namespace sinkgrad::cuda::streaming
