// y_d = max_n x_nd over the unmasked n, won by member w_d (kept; -1: none)        dx_nd = dy_d [n = w_d]
// Forward reads x once, in pieces of the sets where there are few (see fold.h). Backward writes dx once, and the winners' elements again;
// with `add` only those.
#include "cuda/fold.h"

namespace sinkgrad::cuda {
namespace {

/// The largest element so far and whose it is; -1: nobody's. Of equal ones the first wins; NaN beats all, the last NaN beats the others.
template <class T>
struct Winner {
  T value = 0, member = -1;
};
struct Better {
  template <class T>
  __device__ Winner<T> operator()(const Winner<T>& a, const Winner<T>& b) const {
    if (a.member < 0 || b.member < 0) return a.member < 0 ? b : a;
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    if (a_is_nan || b_is_nan) return a_is_nan && (!b_is_nan || a.member > b.member) ? a : b;
    return a.value > b.value || (a.value == b.value && a.member < b.member) ? a : b;
  }
};

/// Offsets are those of x and of the mask, and the member's number.
template <class T>
struct Candidate {
  Span<const T> x;
  Span<const int32_t> mask;
  __device__ Winner<T> operator()(const Offsets<3>& o) const {
    const bool masked = mask && mask[o.at[1]] != 0;
    return {x[o.at[0]], masked ? T(-1) : static_cast<T>(o.at[2])};
  }
};

template <class T>
struct Announce {
  Span<T> y, winner;
  __device__ void operator()(int64_t i, const Winner<T>& w) const {
    y[i] = w.member < 0 ? T(0) : w.value;
    winner[i] = w.member;
  }
};

void forward(const Forward& f) {
  const Shape& x = f.in[0].shape;
  const int64_t B = x[0], N = x[1], D = x[2];
  FoldWalk<3> walk;
  walk.kept.add(D, {1, 0, 0});
  walk.kept.add(B, {N * D, N, 0});
  walk.folded.add(N, {D, 1, 1});
  dispatch(f.dtype(), [&]<class T>() {
    fold(walk, Better{}, Winner<T>{}, Candidate<T>{span<const T>(f.in[0]), span<const int32_t>(f.in[1])},
         Announce<T>{span<T>(f.out), span<T>(f.saved[0])});
  });
}

template <class T>
__global__ void give_to_winners(Span<const T> winner, Span<const T> dy, Divisor width, int64_t members, Span<T> dx) {
#pragma unroll 1
  for (int64_t i = thread_index(); i < dy.count; i += thread_count()) {
    const int64_t set = width.divide(i), d = i - set * width.value(), n = static_cast<int64_t>(static_cast<T>(winner[i]));
    if (n >= 0) dx[(set * members + n) * width.value() + d] += dy[i];
  }
}

void backward(const Backward& b) {
  const Grad& grad = b.in_grad[0];
  if (!grad) return;
  dispatch(b.dtype(), [&]<class T>() {
    if (!grad.add) fill(span<T>(grad.view), T(0));
    launch(KERNEL(give_to_winners<T>), grid_stride(b.out.shape.count()), span<const T>(b.saved[0]), span<const T>(b.out_grad),
           Divisor(b.in[0].shape[2]), b.in[0].shape[1], span<T>(grad.view));
  });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("max_pool_set", {forward, backward});

}  // namespace
}  // namespace sinkgrad::cuda
