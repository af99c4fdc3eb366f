// Row primitives of fused attention, for one instruction set: maxima, exponentials, dots and updates over padded rows.
// Rows have `m` columns and are padded to whole panels; the padding holds 0 once exponentials are taken.
#if defined(SINKGRAD_ATTENTION_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SINKGRAD_ATTENTION_ROWS_INL
#undef SINKGRAD_ATTENTION_ROWS_INL
#else
#define SINKGRAD_ATTENTION_ROWS_INL
#endif

#include "ops/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {

template <class T>
constexpr T kLowest = -std::numeric_limits<T>::infinity();

/// max_j (x_j + bias_j); bias may be null, padding must not exceed the rest.
template <class T>
HWY_INLINE T RowMax(const T* x, const T* bias, int64_t width) {
  Vec<T> a = Set(kLowest<T>), b = a;
  if (bias)
    for (int64_t j = 0; j < width; j += kPanel<T>) {
      a = hn::Max(a, hn::Add(Load(x + j), Load(bias + j)));
      b = hn::Max(b, hn::Add(Load(x + j + kLanes<T>), Load(bias + j + kLanes<T>)));
    }
  else
    for (int64_t j = 0; j < width; j += kPanel<T>) {
      a = hn::Max(a, Load(x + j));
      b = hn::Max(b, Load(x + j + kLanes<T>));
    }
  return Largest<T>(hn::Max(a, b));
}

/// x_j = 2^((x_j - top) + shift + bias_j), padding 0; returns the sum. bias may be null.
template <class T>
HWY_INLINE T RowExp(T* x, T top, T shift, const T* bias, int64_t m, int64_t width) {
  const Vec<T> vtop = Set(top), vshift = Set(shift);
  Vec<T> a = hn::Zero(Tag<T>()), b = a;
  int64_t j = 0;
  if (bias) {
    for (; j + kPanel<T> <= m; j += kPanel<T>) {
      const auto y = Exp2<T>(hn::Add(hn::Sub(Load(x + j), vtop), hn::Add(Load(bias + j), vshift))),
                 z = Exp2<T>(hn::Add(hn::Sub(Load(x + j + kLanes<T>), vtop), hn::Add(Load(bias + j + kLanes<T>), vshift)));
      a = hn::Add(a, y);
      b = hn::Add(b, z);
      Store(y, x + j);
      Store(z, x + j + kLanes<T>);
    }
  } else {
    for (; j + kPanel<T> <= m; j += kPanel<T>) {
      const auto y = Exp2<T>(hn::Add(hn::Sub(Load(x + j), vtop), vshift)), z = Exp2<T>(hn::Add(hn::Sub(Load(x + j + kLanes<T>), vtop), vshift));
      a = hn::Add(a, y);
      b = hn::Add(b, z);
      Store(y, x + j);
      Store(z, x + j + kLanes<T>);
    }
  }
  for (; j < width; j += kLanes<T>) {
    const auto present = hn::FirstN(Tag<T>(), static_cast<size_t>(std::max<int64_t>(0, m - j)));
    const auto shifted = hn::Add(hn::Sub(Load(x + j), vtop), vshift);
    const auto y = hn::IfThenElseZero(present, Exp2<T>(bias ? hn::Add(shifted, Load(bias + j)) : shifted));
    a = hn::Add(a, y);
    Store(y, x + j);
  }
  return Total<T>(hn::Add(a, b));
}

template <class T>
HWY_INLINE T RowDot(const T* x, const T* y, int64_t width) {
  Vec<T> a = hn::Zero(Tag<T>()), b = a;
  for (int64_t j = 0; j < width; j += kPanel<T>) {
    a = hn::MulAdd(Load(x + j), Load(y + j), a);
    b = hn::MulAdd(Load(x + j + kLanes<T>), Load(y + j + kLanes<T>), b);
  }
  return Total<T>(hn::Add(a, b));
}

/// y_j += factor x_j.
template <class T>
HWY_INLINE void RowAdd(T factor, const T* x, T* y, int64_t width) {
  const Vec<T> f = Set(factor);
  for (int64_t j = 0; j < width; j += kLanes<T>) Store(hn::MulAdd(f, Load(x + j), Load(y + j)), y + j);
}

/// y_j *= x_j.
template <class T>
HWY_INLINE void RowMultiply(const T* x, T* y, int64_t width) {
  for (int64_t j = 0; j < width; j += kLanes<T>) Store(hn::Mul(Load(x + j), Load(y + j)), y + j);
}

/// The row of the plan, factor x_j b_j (b may be null): added to the column sums; returns its largest entry.
template <class T>
HWY_INLINE T RowMeasure(const T* x, T factor, const T* b, T* sums, int64_t width) {
  const Vec<T> f = Set(factor);
  Vec<T> top = hn::Zero(Tag<T>());
  for (int64_t j = 0; j < width; j += kLanes<T>) {
    auto p = hn::Mul(f, Load(x + j));
    if (b) p = hn::Mul(p, Load(b + j));
    top = hn::Max(top, p);
    Store(hn::Add(p, Load(sums + j)), sums + j);
  }
  return Largest<T>(top);
}

/// y_j = factor x_j, or y_j += factor x_j where `add`; x and y have any length and alignment.
template <class T>
HWY_INLINE void ScaledCopy(int64_t n, const T* x, T factor, T* y, bool add) {
  const Vec<T> f = Set(factor);
  int64_t j = 0;
  if (add)
    for (; j + kLanes<T> <= n; j += kLanes<T>) Store(hn::MulAdd(f, Load(x + j), Load(y + j)), y + j);
  else
    for (; j + kLanes<T> <= n; j += kLanes<T>) Store(hn::Mul(f, Load(x + j)), y + j);
  for (; j < n; ++j) y[j] = add ? y[j] + factor * x[j] : factor * x[j];
}

/// sum_j x_j y_j over any length.
template <class T>
HWY_INLINE T AnyDot(int64_t n, const T* x, const T* y) {
  Vec<T> a = hn::Zero(Tag<T>());
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) a = hn::MulAdd(Load(x + j), Load(y + j), a);
  T sum = Total<T>(a);
  for (; j < n; ++j) sum += x[j] * y[j];
  return sum;
}

/// y_j = f(x_j) over n values; y must hold whole vectors, x is read to whole vectors.
template <class T, class F>
HWY_INLINE void Map(int64_t n, const T* x, T* y, F f) {
  for (int64_t j = 0; j < n; j += kLanes<T>) Store(f(Load(x + j)), y + j);
}

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
