// Elementwise functions: value() and slope() = dy/dx of each, written once with Highway; this file is compiled once per instruction set.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/op.h"
#include "core/parallel.h"

// Three levels are enough on x86-64: the baseline, AVX2 with FMA, AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/unary.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "ops/cpu/math-inl.h"

#ifndef SINKGRAD_UNARY_FUNCTIONS
#define SINKGRAD_UNARY_FUNCTIONS
namespace sinkgrad::cpu {

enum class Unary : uint8_t { neg, scale_shift, exp, log, sqrt, tanh, sigmoid, relu, leaky_relu, gelu };

struct UnaryAttributes {
  explicit UnaryAttributes(const Attrs& a) : scale(a.get("scale", 1)), shift(a.get("shift", 0)), slope(a.get("slope", 0)) {}
  double scale, shift, slope;
};

}  // namespace sinkgrad::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#define UNARY(op, value_of, slope_of)                                    \
  struct op##_function {                                                 \
    template <class D, class V = hn::Vec<D>>                             \
    static HWY_INLINE V value(D d, V x, const UnaryAttributes& k) {      \
      (void)d, (void)k;                                                  \
      return value_of;                                                   \
    }                                                                    \
    template <class D, class V = hn::Vec<D>>                             \
    static HWY_INLINE V slope(D d, V x, V y, const UnaryAttributes& k) { \
      (void)d, (void)x, (void)y, (void)k;                                \
      return slope_of;                                                   \
    }                                                                    \
  };

template <class D>
HWY_INLINE hn::Vec<D> Number(D d, double x) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(x));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  return hn::Div(Number(d, 1), hn::Add(Number(d, 1), Exp(d, hn::Neg(x))));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Phi(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return NormalCdf(d, x);
  } else {
    HWY_ALIGN double lanes[hn::MaxLanes(D())];
    hn::Store(x, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = std::erfc(lanes[i] * -std::numbers::sqrt2 / 2) / 2;
    return hn::Load(d, lanes);
  }
}
/// exp(-x^2 / 2) / sqrt(2 pi)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Density(D d, V x) {
  return hn::Mul(Number(d, std::numbers::inv_sqrtpi / std::numbers::sqrt2), Exp(d, hn::Mul(hn::Mul(x, x), Number(d, -0.5))));
}

// clang-format off
//    op           y                                                            dy/dx
UNARY(neg,         hn::Neg(x),                                                  Number(d, -1))
UNARY(scale_shift, hn::MulAdd(Number(d, k.scale), x, Number(d, k.shift)),       Number(d, k.scale))
UNARY(exp,         Exp(d, x),                                                   y)
UNARY(log,         Log(d, x),                                                   hn::Div(Number(d, 1), x))
UNARY(sqrt,        hn::Sqrt(x),                                                 hn::Div(Number(d, 0.5), y))
UNARY(tanh,        Tanh(d, x),                                                  hn::NegMulAdd(y, y, Number(d, 1)))
UNARY(sigmoid,     Sigmoid(d, x),                                               hn::Mul(y, hn::Sub(Number(d, 1), y)))
UNARY(relu,        hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x),               hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), Number(d, 1)))
UNARY(leaky_relu,  hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(Number(d, k.slope), x), x),
                                                          hn::IfThenElse(hn::Gt(x, hn::Zero(d)), Number(d, 1), Number(d, k.slope)))
UNARY(gelu,        hn::Mul(x, Phi(d, x)),                                       hn::MulAdd(x, Density(d, x), Phi(d, x)))
// clang-format on
#undef UNARY

/// body(function) for the function of that name.
template <class Body>
void With(Unary op, Body body) {
  switch (op) {
    case Unary::neg: return body(neg_function());
    case Unary::scale_shift: return body(scale_shift_function());
    case Unary::exp: return body(exp_function());
    case Unary::log: return body(log_function());
    case Unary::sqrt: return body(sqrt_function());
    case Unary::tanh: return body(tanh_function());
    case Unary::sigmoid: return body(sigmoid_function());
    case Unary::relu: return body(relu_function());
    case Unary::leaky_relu: return body(leaky_relu_function());
    case Unary::gelu: return body(gelu_function());
  }
}

/// step(i) for every vector of n elements; the last one may reach back over elements that were done. n is at least one vector.
template <class D, class Step>
HWY_INLINE void EachVector(D d, int64_t n, Step step) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i + lanes <= n; i += lanes) step(i);
  if (n % lanes) step(n - lanes);
}

template <class T>
void Values(Unary op, const UnaryAttributes& k, const T* x, T* y, int64_t n) {
  With(op, [&]<class F>(F) HWY_ATTR {
    const hn::ScalableTag<T> d;
    EachVector(d, n, [&](int64_t i) HWY_ATTR { hn::StoreU(F::value(d, hn::LoadU(d, x + i), k), d, y + i); });
  });
}
/// dx = dy slope, without adding: the last vector may be written twice.
template <class T>
void Slopes(Unary op, const UnaryAttributes& k, const T* x, const T* y, const T* dy, T* dx, int64_t n) {
  With(op, [&]<class F>(F) HWY_ATTR {
    const hn::ScalableTag<T> d;
    EachVector(d, n, [&](int64_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, dy + i), F::slope(d, hn::LoadU(d, x + i), hn::LoadU(d, y + i), k)), d, dx + i);
    });
  });
}

void ValuesF32(Unary op, const UnaryAttributes& k, const float* x, float* y, int64_t n) { Values(op, k, x, y, n); }
void ValuesF64(Unary op, const UnaryAttributes& k, const double* x, double* y, int64_t n) { Values(op, k, x, y, n); }
void SlopesF32(Unary op, const UnaryAttributes& k, const float* x, const float* y, const float* dy, float* dx, int64_t n) {
  Slopes(op, k, x, y, dy, dx, n);
}
void SlopesF64(Unary op, const UnaryAttributes& k, const double* x, const double* y, const double* dy, double* dx, int64_t n) {
  Slopes(op, k, x, y, dy, dx, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace sinkgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinkgrad::cpu {
HWY_EXPORT(ValuesF32);
HWY_EXPORT(ValuesF64);
HWY_EXPORT(SlopesF32);
HWY_EXPORT(SlopesF64);

namespace {

constexpr int64_t kBlock = 1024, kWidest = 16;  // elements of a block, and of the widest vector

/// body(begin, length) for consecutive blocks of 0 .. count-1, in parallel.
template <class Body>
void each_block(int64_t count, Body body) {
  parallel_for((count + kBlock - 1) / kBlock, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * kBlock; i < std::min(count, end * kBlock); i += kBlock) body(i, std::min(kBlock, count - i));
  });
}

/// n elements of an array that may be shorter than a vector, as an array that is not.
template <class T>
struct Padded {
  Padded(const T* x, int64_t n) : data(n < kWidest ? std::copy_n(x, n, buffer), buffer : x) {}
  T buffer[kWidest] = {};
  const T* data;
};

void evaluate(Unary op, const Forward& f) {
  const UnaryAttributes k(f.attrs);
  dispatch(f.dtype(), [&]<class T>() {
    each_block(f.out.shape.count(), [&](int64_t i, int64_t n) {
      const Padded<T> x(f.in[0].as<T>() + i, n);
      T few[kWidest], *to = f.out.as<T>() + i, *y = n < kWidest ? few : to;
      const int64_t count = std::max(n, kWidest);
      if constexpr (sizeof(T) == 4)
        HWY_DYNAMIC_DISPATCH(ValuesF32)(op, k, x.data, y, count);
      else
        HWY_DYNAMIC_DISPATCH(ValuesF64)(op, k, x.data, y, count);
      if (n < kWidest) std::copy_n(few, n, to);
    });
  });
}

void differentiate(Unary op, const Backward& b) {
  const Grad& grad = b.in_grad[0];
  if (!grad) return;
  const UnaryAttributes k(b.attrs);
  dispatch(b.dtype(), [&]<class T>() {
    each_block(b.out.shape.count(), [&](int64_t i, int64_t n) {
      const Padded<T> x(b.in[0].as<T>() + i, n), y(b.out.as<T>() + i, n), dy(b.out_grad.as<T>() + i, n);
      T aside[kBlock], *to = grad.as<T>() + i, *dx = grad.add || n < kWidest ? aside : to;
      const int64_t count = std::max(n, kWidest);
      if constexpr (sizeof(T) == 4)
        HWY_DYNAMIC_DISPATCH(SlopesF32)(op, k, x.data, y.data, dy.data, dx, count);
      else
        HWY_DYNAMIC_DISPATCH(SlopesF64)(op, k, x.data, y.data, dy.data, dx, count);
      if (dx == aside)
        for (int64_t j = 0; j < n; ++j) put(to[j], aside[j], grad.add);
    });
  });
}

}  // namespace

#define UNARY(op)                                                 \
  void op##_forward(const Forward& f) { evaluate(Unary::op, f); } \
  void op##_backward(const Backward& b) { differentiate(Unary::op, b); }
UNARY(neg)
UNARY(scale_shift)
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(tanh)
UNARY(sigmoid)
UNARY(relu)
UNARY(leaky_relu)
UNARY(gelu)
#undef UNARY

}  // namespace sinkgrad::cpu
#endif
