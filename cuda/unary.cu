// The table below is the mathematics: y and dy/dx from x, y and the attributes k, for one element; all in the tensor's own precision.
// Forward reads x and writes y. Backward reads dy, those of x and y that the derivative names, and writes dx. One pass each.
#include "cuda/elementwise.h"

namespace sinkgrad::cuda {
namespace {

template <class T>
struct Attributes {
  explicit Attributes(const Attrs& a)
      : scale(static_cast<T>(a.get("scale", 1))), shift(static_cast<T>(a.get("shift", 0))), slope(static_cast<T>(a.get("slope", 0))) {}
  T scale, shift, slope;
};

/// Phi(x), the normal distribution function, accurate in both tails.
template <class T>
__device__ T normal_cdf(T x) {
  constexpr T inverse_sqrt2 = static_cast<T>(0.70710678118654752440);
  return erfc(x * -inverse_sqrt2) / 2;
}
/// exp(-x^2 / 2) / sqrt(2 pi)
template <class T>
__device__ T normal_density(T x) {
  constexpr T inverse_sqrt_2pi = static_cast<T>(0.39894228040143267794);
  return exp(-x * x / 2) * inverse_sqrt_2pi;
}

template <template <class> class Value>
void forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() { map(Value<T>{Attributes<T>(f.attrs)}, GradSpan<T>{span<T>(f.out)}, span<const T>(f.in[0])); });
}

template <template <class> class Slope>
void backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() {
    map(Slope<T>{Attributes<T>(b.attrs)}, span<T>(b.in_grad[0]), span<const T>(b.in[0]), span<const T>(b.out), span<const T>(b.out_grad));
  });
}

#define UNARY(op, value, derivative)                                                                              \
  template <class T>                                                                                              \
  struct op##_value {                                                                                             \
    Attributes<T> k;                                                                                              \
    __device__ T operator()(T x) const { return value; }                                                          \
  };                                                                                                              \
  template <class T>                                                                                              \
  struct op##_gradient {                                                                                          \
    Attributes<T> k;                                                                                              \
    __device__ T operator()([[maybe_unused]] T x, [[maybe_unused]] T y, T dy) const { return dy * (derivative); } \
  };                                                                                                              \
  [[maybe_unused]] const bool op##_registered = register_cuda_kernels(#op, {forward<op##_value>, backward<op##_gradient>});

// clang-format off
//    op           y                         dy/dx
UNARY(neg,         -x,                       T(-1))
UNARY(scale_shift, k.scale * x + k.shift,    k.scale)
UNARY(exp,         exp(x),                   y)
UNARY(log,         log(x),                   1 / x)
UNARY(sqrt,        sqrt(x),                  T(0.5) / y)
UNARY(tanh,        tanh(x),                  1 - y * y)
UNARY(sigmoid,     1 / (1 + exp(-x)),        y * (1 - y))
UNARY(relu,        x < 0 ? T(0) : x,         x > 0 ? T(1) : T(0))
UNARY(leaky_relu,  x < 0 ? k.slope * x : x,  x > 0 ? T(1) : k.slope)
UNARY(gelu,        x * normal_cdf(x),        normal_cdf(x) + x * normal_density(x))
// clang-format on

}  // namespace
}  // namespace sinkgrad::cuda
