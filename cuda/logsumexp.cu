// y = log sum_k exp(x_k)    dx_k = dy exp(x_k - y)
// With y = -inf every dx is 0; with y = +inf the elements that are +inf share dy equally.
// Forward reads x once (an online log-sum-exp); backward reads x and writes dx, once.
#include "cuda/lines.h"

namespace sinkgrad::cuda {
namespace {

template <class T, class Team>
__global__ void __launch_bounds__(kMostThreads<T, Team>, 1) logsumexp_forward(Span<const T> x, Span<T> y, Lines lines, Team team) {
  STATIC_SHARED(T, scratch, Team::kScratch);
#pragma unroll 1
  for (int64_t begin = 0; begin < lines.count; begin += team.per_grid()) {
    const int64_t line = team.line_of(begin), first = lines.offset(line), length = line < lines.count ? lines.length : 0;
    auto load = [&](int64_t k) { return x[first + k * lines.stride]; };
    const LogSum<T> s = team_log_sum(team, log_sum_of<T>(team.rank(), length, team.threads(), load), scratch);
    if (team.rank() == 0 && line < lines.count) y[line] = s.log_sum();
  }
}

template <class T, class Team>
__global__ void __launch_bounds__(kMostThreads<T, Team>, 1)
    logsumexp_backward(Span<const T> x, Span<const T> y, Span<const T> dy, GradSpan<T> dx, Lines lines, Team team) {
#pragma unroll 1
  for (int64_t begin = 0; begin < lines.count; begin += team.per_grid()) {
    const int64_t line = team.line_of(begin), first = lines.offset(line);
    if (line >= lines.count) break;
    auto load = [&](int64_t k) -> T { return x[first + k * lines.stride]; };
    const T top = y[line];
    T scale = dy[line];
    if (top == infinity<T>()) {  // rare: each thread counts for itself
      T shares = 0;
      for (int64_t k = 0; k < lines.length; ++k) shares += T(load(k) == infinity<T>());
      scale /= shares;
    }
    each_ahead(team.rank(), lines.length, team.threads(), load, [&](int64_t k, T v) {
      const T weight = top == -infinity<T>() ? T(0) : top == infinity<T>() ? T(v == infinity<T>()) : exp(v - top);
      dx.put(first + k * lines.stride, scale * weight);
    });
  }
}

void forward(const Forward& f) {
  const Shape& shape = f.in[0].shape;
  const Lines lines(shape, shape.axis(f.attrs.integer("axis"), "logsumexp"));
  dispatch(f.dtype(), [&]<class T>() {
    with_team<T>(lines, [&]<class Team>(Team team, const Launch& launched) {
      launch(KERNEL(logsumexp_forward<T, Team>), launched, span<const T>(f.in[0]), span<T>(f.out), lines, team);
    });
  });
}

void backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const Shape& shape = b.in[0].shape;
  const Lines lines(shape, shape.axis(b.attrs.integer("axis"), "logsumexp"));
  dispatch(b.dtype(), [&]<class T>() {
    with_team<T>(lines, [&]<class Team>(Team team, const Launch& launched) {
      launch(KERNEL(logsumexp_backward<T, Team>), launched, span<const T>(b.in[0]), span<const T>(b.out), span<const T>(b.out_grad),
             span<T>(b.in_grad[0]), lines, team);
    });
  });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("logsumexp", {forward, backward});

}  // namespace
}  // namespace sinkgrad::cuda
