// softmax:      y = exp(x - max) / sum     dx = y o (dy - <y, dy>)
// log_softmax:  y = x - logsumexp(x)       dx = dy - exp(y) sum(dy)
// Rows of up to kHeldLine elements are held in registers: forward reads x once, backward y and dy. Longer and strided lines are swept
// twice (an online log-sum-exp or the inner product, then the result), the second time mostly from cache. A masked element counts as
// -inf. Backward reads the mask, and log_softmax x, only where y leaves open whether an element is excluded.
#include "cuda/lines.h"

namespace sinkgrad::cuda {
namespace {

/// A broadcast i32 mask along lines: where it begins on a line, and then element k of that line. Absent: nothing is masked.
struct LineMask {
  LineMask(const View& mask, const Shape& shape, int axis) : values(span<const int32_t>(mask)) {
    if (!mask) return;
    walk = Walk<1>(shape, {mask.shape});
    step = BroadcastStrides(mask.shape, shape).stride[static_cast<size_t>(axis)];
  }
  explicit __device__ operator bool() const { return static_cast<bool>(values); }
  __device__ int64_t start(int64_t first_of_line) const { return *this ? walk(first_of_line).at[0] : 0; }
  __device__ bool operator()(int64_t start, int64_t k) const { return *this && values[start + k * step] != 0; }
  Span<const int32_t> values;
  Walk<1> walk;
  int64_t step = 0;
};

/// From the largest element of a line and the sum of exp(x - shift) to the result. All -inf: zeros, or -inf. Any +inf or NaN: NaN.
template <class T, bool log_of>
struct Normaliser {
  T shift, log_total, inverse;
  static __device__ T shift_of(T top) { return top > -infinity<T>() ? top : T(0); }
  __device__ Normaliser(T top, T total)
      : shift(shift_of(top)), log_total(total == T(0) ? T(0) : log(total)), inverse(total == T(0) ? T(0) : T(1) / total) {}
  __device__ T operator()(T x) const { return log_of ? (x - shift) - log_total : exp(x - shift) * inverse; }
};

template <class T, class Team, bool log_of>
__global__ void __launch_bounds__(kHeldThreads, kHeldBlocks<T>) softmax_rows(Span<const T> x, LineMask masked, Span<T> y, Lines lines, bool vectors) {
  STATIC_SHARED(T, scratch, Team::kScratch);
#pragma unroll 1
  for (int64_t begin = 0; begin < lines.count; begin += Team::per_grid()) {
    const int64_t line = Team::line_of(begin), first = line * lines.length;
    const Row<T, Team> row{line < lines.count ? static_cast<int>(lines.length) : 0, vectors};
    typename Row<T, Team>::Values v;
    row.load(v, x, first, -infinity<T>());
    if (masked && row.length > 0) {
      const int64_t start = masked.start(first);
#pragma unroll
      for (int e = 0; e < kHeld; ++e)
        if (row.has(e) && masked(start, row.index(e))) v[e] = -infinity<T>();
    }
    T top = -infinity<T>(), total = 0;
#pragma unroll
    for (int e = 0; e < kHeld; ++e) top = fmax(top, v[e]);
    top = Team::reduce(top, Top{}, scratch);
    const T shift = Normaliser<T, log_of>::shift_of(top);
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      v[e] -= shift;
      const T exponential = exp(v[e]);
      total += exponential;
      if constexpr (!log_of) v[e] = exponential;
    }
    const Normaliser<T, log_of> normaliser(top, Team::reduce(total, Sum{}, scratch));
#pragma unroll
    for (int e = 0; e < kHeld; ++e) v[e] = log_of ? v[e] - normaliser.log_total : v[e] * normaliser.inverse;
    row.put(GradSpan<T>{y}, first, v);
  }
}

template <class T, bool log_of>
__global__ void __launch_bounds__(kSweepThreads<T>, 1) softmax_sweep(Span<const T> x, LineMask masked, Span<T> y, Lines lines, Sweep team) {
  STATIC_SHARED(T, scratch, Sweep::kScratch);
#pragma unroll 1
  for (int64_t begin = 0; begin < lines.count; begin += team.per_grid()) {
    const int64_t line = team.line_of(begin), first = lines.offset(line), length = line < lines.count ? lines.length : 0, start = masked.start(first);
    auto load = [&](int64_t k) { return masked(start, k) ? -infinity<T>() : static_cast<T>(x[first + k * lines.stride]); };
    const LogSum<T> s = team_log_sum(team, log_sum_of<T>(team.rank(), length, team.threads(), load), scratch);
    const Normaliser<T, log_of> normaliser(s.max, s.max == infinity<T>() ? not_a_number<T>() : s.sum);
    each_ahead(team.rank(), length, team.threads(), load, [&](int64_t k, T v) { y[first + k * lines.stride] = normaliser(v); });
  }
}

/// Whether an element whose result is y takes no part in its line and has gradient exactly 0: `masked`, or for log_softmax a -inf.
template <bool log_of, class T>
__device__ bool excluded(T y, const Span<const T>& x, int64_t i, const LineMask& masked, int64_t start, int64_t k) {
  return !(y > (log_of ? -infinity<T>() : T(0))) && (masked(start, k) || (log_of && x[i] == -infinity<T>()));
}

template <class T, class Team, bool log_of>
__global__ void __launch_bounds__(kHeldThreads, kHeldBlocks<T>)
    softmax_backward_rows(Span<const T> x, Span<const T> y, Span<const T> dy, LineMask masked, GradSpan<T> dx, Lines lines, bool vectors) {
  STATIC_SHARED(T, scratch, Team::kScratch);
#pragma unroll 1
  for (int64_t begin = 0; begin < lines.count; begin += Team::per_grid()) {
    const int64_t line = Team::line_of(begin), first = line * lines.length, start = masked.start(first);
    const Row<T, Team> row{line < lines.count ? static_cast<int>(lines.length) : 0, vectors};
    typename Row<T, Team>::Values v, w;
    row.load(v, y, first);
    row.load(w, dy, first);
    T inner = 0;
    unsigned out = 0;  // bit e: element e is excluded
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      if (row.has(e) && excluded<log_of>(v[e], x, first + row.index(e), masked, start, row.index(e)))
        out |= 1u << e;
      else
        inner += log_of ? w[e] : v[e] * w[e];
    }
    inner = Team::reduce(inner, Sum{}, scratch);
#pragma unroll
    for (int e = 0; e < kHeld; ++e) w[e] = out >> e & 1u ? T(0) : log_of ? w[e] - exp(v[e]) * inner : v[e] * (w[e] - inner);
    row.put(dx, first, w);
  }
}

template <class T, bool log_of>
__global__ void __launch_bounds__(kSweepThreads<T>, 1)
    softmax_backward_sweep(Span<const T> x, Span<const T> y, Span<const T> dy, LineMask masked, GradSpan<T> dx, Lines lines, Sweep team) {
  STATIC_SHARED(T, scratch, Sweep::kScratch);
  struct Both {
    T y, dy;
  };
#pragma unroll 1
  for (int64_t begin = 0; begin < lines.count; begin += team.per_grid()) {
    const int64_t line = team.line_of(begin), first = lines.offset(line), length = line < lines.count ? lines.length : 0, start = masked.start(first);
    auto load = [&](int64_t k) { return Both{y[first + k * lines.stride], dy[first + k * lines.stride]}; };
    auto is_excluded = [&](int64_t k, const Both& v) { return excluded<log_of>(v.y, x, first + k * lines.stride, masked, start, k); };
    T inner = 0;
    each_ahead(team.rank(), length, team.threads(), load, [&](int64_t k, const Both& v) {
      if (!is_excluded(k, v)) inner += log_of ? v.dy : v.y * v.dy;
    });
    inner = team.reduce(inner, Sum{}, scratch);
    each_ahead(team.rank(), length, team.threads(), load, [&](int64_t k, const Both& v) {
      dx.put(first + k * lines.stride, is_excluded(k, v) ? T(0) : log_of ? v.dy - exp(v.y) * inner : v.y * (v.dy - inner));
    });
  }
}

template <bool log_of>
void forward(const Forward& f) {
  const int axis = f.out.shape.axis(f.attrs.integer("axis"), "softmax");
  const Lines lines(f.out.shape, axis);
  const LineMask masked(f.in[1], f.out.shape, axis);
  dispatch(f.dtype(), [&]<class T>() {
    const auto x = span<const T>(f.in[0]);
    const auto y = span<T>(f.out);
    with_team<T>(lines, [&]<class Team>(Team team, const Launch& shape) {
      if constexpr (Team::kHolds)
        launch(KERNEL(softmax_rows<T, Team, log_of>), shape, x, masked, y, lines, rows_take_vectors(lines.length, x, y));
      else
        launch(KERNEL(softmax_sweep<T, log_of>), shape, x, masked, y, lines, team);
    });
  });
}

template <bool log_of>
void backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const int axis = b.out.shape.axis(b.attrs.integer("axis"), "softmax");
  const Lines lines(b.out.shape, axis);
  const LineMask masked(b.in[1], b.out.shape, axis);
  dispatch(b.dtype(), [&]<class T>() {
    const auto x = span<const T>(b.in[0]), y = span<const T>(b.out), dy = span<const T>(b.out_grad);
    const auto dx = span<T>(b.in_grad[0]);
    with_team<T>(lines, [&]<class Team>(Team team, const Launch& shape) {
      if constexpr (Team::kHolds)
        launch(KERNEL(softmax_backward_rows<T, Team, log_of>), shape, x, y, dy, masked, dx, lines, rows_take_vectors(lines.length, y, dy, dx.data));
      else
        launch(KERNEL(softmax_backward_sweep<T, log_of>), shape, x, y, dy, masked, dx, lines, team);
    });
  });
}

[[maybe_unused]] const bool registered =
    register_cuda_kernels("softmax", {forward<false>, backward<false>}) && register_cuda_kernels("log_softmax", {forward<true>, backward<true>});

}  // namespace
}  // namespace sinkgrad::cuda
