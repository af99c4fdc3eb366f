// sum:   y = sum x        dx = dy
// mean:  y = sum x / n    dx = dy / n
// max:   y = max x        dx = dy at the first maximal element, 0 elsewhere
// where dy is broadcast over the reduced axes. Forward reads x once (see fold.h). Backward of sum and mean writes dx once; that of max
// reads x once to find the first element and writes dx once.
#include <limits>

#include "cuda/fold.h"
#include "ops/shape_rules.h"

namespace sinkgrad::cuda {
namespace {

/// 1 over the number of elements that are averaged.
template <class T>
T mean_scale(const Shape& shape, const Attrs& attrs) {
  return T(1) / static_cast<T>(reduced_count(shape, attrs));
}

template <bool mean>
void sum_forward(const Forward& f) {
  const Shape& shape = f.in[0].shape;
  dispatch(f.dtype(), [&]<class T>() {
    sum_to(span<const T>(f.in[0]), shape, GradSpan<T>{span<T>(f.out)}, reduced_shape(shape, f.attrs), mean ? mean_scale<T>(shape, f.attrs) : T(1));
  });
}

template <bool mean>
void sum_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const Shape& shape = b.in[0].shape;
  dispatch(b.dtype(), [&]<class T>() {
    expand(span<const T>(b.out_grad), reduced_shape(shape, b.attrs), span<T>(b.in_grad[0]), shape, mean ? mean_scale<T>(shape, b.attrs) : T(1));
  });
}

void max_forward(const Forward& f) {
  const Shape &shape = f.in[0].shape, reduced = reduced_shape(shape, f.attrs);
  dispatch(f.dtype(), [&]<class T>() {
    fold(FoldWalk<2>(shape, {shape, reduced}, 1), Max{}, -std::numeric_limits<T>::infinity(), ElementOf<T>{span<const T>(f.in[0])},
         ScaledSum<T>{{span<T>(f.out)}, T(1)});
  });
}

constexpr int64_t kNone = INT64_MAX;

/// Where x is maximal; NaN is the maximum of its kind.
template <class T>
struct PlaceOfMaximum {
  Span<const T> x, y;
  __device__ int64_t operator()(const Offsets<2>& o) const {
    const T v = x[o.at[0]], top = y[o.at[1]];
    return v == top || (v != v && top != top) ? o.at[0] : kNone;
  }
};
struct First {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};
template <class T>
struct AddThere {
  Span<const T> dy;
  Span<T> dx;
  __device__ void operator()(int64_t k, int64_t place) const {
    if (place != kNone) dx[place] += dy[k];
  }
};

void max_backward(const Backward& b) {
  const Grad& grad = b.in_grad[0];
  if (!grad) return;
  const Shape &shape = b.in[0].shape, reduced = reduced_shape(shape, b.attrs);
  dispatch(b.dtype(), [&]<class T>() {
    if (!grad.add) fill(span<T>(grad.view), T(0));
    fold(FoldWalk<2>(shape, {shape, reduced}, 1), First{}, kNone, PlaceOfMaximum<T>{span<const T>(b.in[0]), span<const T>(b.out)},
         AddThere<T>{span<const T>(b.out_grad), span<T>(grad.view)});
  });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("sum", {sum_forward<false>, sum_backward<false>}) &&
                                         register_cuda_kernels("mean", {sum_forward<true>, sum_backward<true>}) &&
                                         register_cuda_kernels("max", {max_forward, max_backward});

}  // namespace
}  // namespace sinkgrad::cuda
