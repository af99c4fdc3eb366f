// The table below is the mathematics: y and dy/dx from x, y and the attributes k, for one element.
// exp and gelu run in blocks, since their exponentials are vectorised.
#include <cmath>
#include <numbers>

#include "core/op.h"
#include "core/parallel.h"
#include "ops/cpu/vector.h"

namespace sinkgrad::cpu {
namespace {

constexpr int64_t kBlock = 1024;

/// body(begin, length) for consecutive blocks of 0 .. count-1, in parallel.
template <class Body>
void each_block(int64_t count, Body body) {
  parallel_for((count + kBlock - 1) / kBlock, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * kBlock; i < std::min(count, end * kBlock); i += kBlock) body(i, std::min(kBlock, count - i));
  });
}

/// value(x, y, n): y = f(x).
template <class Value>
void forward_blocks(const Forward& f, Value value) {
  dispatch(f.dtype(),
           [&]<class T>() { each_block(f.out.shape.count(), [&](int64_t i, int64_t n) { value(f.in[0].as<T>() + i, f.out.as<T>() + i, n); }); });
}

/// slope(x, y, d, n): d = f'(x), where y = f(x).
template <class Slope>
void backward_blocks(const Backward& b, Slope slope) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() {
    each_block(b.out.shape.count(), [&](int64_t i, int64_t n) {
      T d[kBlock];
      slope(b.in[0].as<T>() + i, b.out.as<T>() + i, d, n);
      const T* dy = b.out_grad.as<T>() + i;
      T* dx = b.in_grad[0].as<T>() + i;
      for (int64_t j = 0; j < n; ++j) put(dx[j], dy[j] * d[j], b.in_grad[0].add);
    });
  });
}

struct Attributes {
  explicit Attributes(const Attrs& a) : scale(a.get("scale", 1)), shift(a.get("shift", 0)), slope(a.get("slope", 0)) {}
  double scale, shift, slope;
};

}  // namespace

#define UNARY(op, value, derivative)                                                                        \
  void op##_forward(const Forward& f) {                                                                     \
    forward_blocks(f, [k = Attributes(f.attrs)]<class T>(const T* in, T* out, int64_t n) {                  \
      for (int64_t j = 0; j < n; ++j) {                                                                     \
        const T x = in[j];                                                                                  \
        out[j] = static_cast<T>(value);                                                                     \
      }                                                                                                     \
    });                                                                                                     \
  }                                                                                                         \
  void op##_backward(const Backward& b) {                                                                   \
    backward_blocks(b, [k = Attributes(b.attrs)]<class T>(const T* in, const T* out, T* slope, int64_t n) { \
      for (int64_t j = 0; j < n; ++j) {                                                                     \
        [[maybe_unused]] const T x = in[j], y = out[j];                                                     \
        slope[j] = static_cast<T>(derivative);                                                              \
      }                                                                                                     \
    });                                                                                                     \
  }

// clang-format off
//    op           y                         dy/dx
UNARY(neg,         -x,                       -1)
UNARY(scale_shift, k.scale * x + k.shift,    k.scale)
UNARY(log,         std::log(x),              1 / x)
UNARY(sqrt,        std::sqrt(x),             T(0.5) / y)
UNARY(tanh,        std::tanh(x),             1 - y * y)
UNARY(sigmoid,     1 / (1 + std::exp(-x)),   y * (1 - y))
UNARY(relu,        x < 0 ? 0 : x,            x > 0 ? 1 : 0)
UNARY(leaky_relu,  x < 0 ? k.slope * x : x,  x > 0 ? 1 : k.slope)
// clang-format on

// y = exp(x)    dy/dx = y
void exp_forward(const Forward& f) {
  forward_blocks(f, []<class T>(const T* x, T* y, int64_t n) { vector_math<T>().exp(x, y, n); });
}
void exp_backward(const Backward& b) {
  backward_blocks(b, []<class T>(const T*, const T* y, T* slope, int64_t n) { std::copy_n(y, n, slope); });
}

// Phi(x) = erfc(-x / sqrt 2) / 2, the normal distribution function, accurate in both tails. For f32 a Chebyshev fit of
// erfc with relative error 1.2e-7 (Press et al., Numerical Recipes, 6.2): it vectorises, std::erfc takes ten times as long.
void normal_cdf(const double* x, double* phi, int64_t n) {
  for (int64_t j = 0; j < n; ++j) phi[j] = std::erfc(x[j] * -std::numbers::sqrt2 / 2) / 2;
}
void normal_cdf(const float* x, float* phi, int64_t n) {
  float t[kBlock];
  for (int64_t j = 0; j < n; ++j) {
    const float z = std::abs(x[j]) * 0.70710678f, u = 1 / (1 + z / 2);
    const float high = 0.27886807f + u * (-1.13520398f + u * (1.48851587f + u * (-0.82215223f + u * 0.17087277f)));
    t[j] = u;
    phi[j] = -1.26551223f + u * (1.00002368f + u * (0.37409196f + u * (0.09678418f + u * (-0.18628806f + u * high)))) - z * z;
  }
  vector_math<float>().exp(phi, phi, n);
  for (int64_t j = 0; j < n; ++j) {
    const float tail = t[j] * phi[j] / 2, right = x[j] < 0 ? 0.0f : 1.0f;
    phi[j] = right + (1 - 2 * right) * tail;
  }
}

// y = x Phi(x)    dy/dx = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi)
void gelu_forward(const Forward& f) {
  forward_blocks(f, []<class T>(const T* x, T* y, int64_t n) {
    normal_cdf(x, y, n);
    for (int64_t j = 0; j < n; ++j) y[j] *= x[j];
  });
}
void gelu_backward(const Backward& b) {
  backward_blocks(b, []<class T>(const T* x, const T*, T* slope, int64_t n) {
    T density[kBlock];
    for (int64_t j = 0; j < n; ++j) density[j] = -x[j] * x[j] / 2;
    vector_math<T>().exp(density, density, n);
    normal_cdf(x, slope, n);
    for (int64_t j = 0; j < n; ++j) slope[j] += x[j] * density[j] * T(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  });
}

}  // namespace sinkgrad::cpu
