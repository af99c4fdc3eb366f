// The table below is the mathematics: y, dL/da and dL/db from a, b, y and g = dL/dy, for one element.
// Operands broadcast; the gradient of one that does is the sum over the elements it stood for, in a fixed order (see fold.h).
// Forward reads a and b and writes y. Each gradient is a pass of its own over g and those of a, b, y that its formula names.
#include "cuda/fold.h"

namespace sinkgrad::cuda {
namespace {

template <class Formula>
void forward(const Forward& f) {
  const Shape &a = f.in[0].shape, &b = f.in[1].shape, &y = f.out.shape;
  dispatch(f.dtype(), [&]<class T>() {
    auto run = [&](const auto&... walk) { map(walk..., Formula{}, GradSpan<T>{span<T>(f.out)}, span<const T>(f.in[0]), span<const T>(f.in[1])); };
    if (a.count() == y.count() && b.count() == y.count())
      run();
    else
      run(Walk<3>(y, {y, a, b}));
  });
}

/// What an element of the output adds to the gradient.
template <class T, class Formula>
struct Term {
  Span<const T> a, b, y, g;
  __device__ T operator()(const Offsets<3>& o) const {
    return Formula{}(static_cast<T>(a[o.at[0]]), static_cast<T>(b[o.at[1]]), static_cast<T>(y[o.at[2]]), static_cast<T>(g[o.at[2]]));
  }
};

template <class Formula, int operand>
void backward(const Backward& f) {
  if (!f.in_grad[operand]) return;
  const Shape &a = f.in[0].shape, &b = f.in[1].shape, &y = f.out.shape, &target = f.in[operand].shape;
  dispatch(f.dtype(), [&]<class T>() {
    auto run = [&](const auto&... walk) {
      map(walk..., Formula{}, span<T>(f.in_grad[operand]), span<const T>(f.in[0]), span<const T>(f.in[1]), span<const T>(f.out),
          span<const T>(f.out_grad));
    };
    if (a.count() == y.count() && b.count() == y.count())
      run();
    else if (target.count() == y.count())
      run(Walk<5>(y, {target, a, b, y, y}));
    else
      fold(FoldWalk<3>(y, {a, b, y}, operand), Sum{}, T(0),
           Term<T, Formula>{span<const T>(f.in[0]), span<const T>(f.in[1]), span<const T>(f.out), span<const T>(f.out_grad)},
           ScaledSum<T>{span<T>(f.in_grad[operand]), T(1)});
  });
}

template <class GradientA, class GradientB>
void backward(const Backward& f) {
  backward<GradientA, 0>(f);
  backward<GradientB, 1>(f);
}

#define FORMULA(name, value)                                                                                                        \
  struct name {                                                                                                                     \
    template <class T>                                                                                                              \
    __device__ T operator()([[maybe_unused]] T a, [[maybe_unused]] T b, [[maybe_unused]] T y = 0, [[maybe_unused]] T g = 0) const { \
      return value;                                                                                                                 \
    }                                                                                                                               \
  };
#define BINARY(op, value, gradient_a, gradient_b) \
  FORMULA(op##_value, value)                      \
  FORMULA(op##_gradient_a, gradient_a)            \
  FORMULA(op##_gradient_b, gradient_b)            \
  [[maybe_unused]] const bool op##_registered = register_cuda_kernels(#op, {forward<op##_value>, backward<op##_gradient_a, op##_gradient_b>});

// clang-format off
//     op   y      dL/da  dL/db
BINARY(add, a + b, g,     g)
BINARY(sub, a - b, g,     -g)
BINARY(mul, a * b, g * b, g * a)
BINARY(div, a / b, g / b, -g * y / b)
// clang-format on

}  // namespace
}  // namespace sinkgrad::cuda
