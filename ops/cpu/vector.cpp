// Each primitive is written once with Highway; this file is compiled once per instruction set.
#include "ops/cpu/vector.h"

// Three levels are enough on x86-64: the baseline, AVX2 with FMA, AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/vector.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "ops/cpu/math-inl.h"
#include "ops/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
T Sum(const T* x, int64_t n) {
  return Rows<T>().reduce(
      n, [](auto a) HWY_ATTR { return a; }, x);
}
template <class T>
T Dot(const T* x, const T* y, int64_t n) {
  return Rows<T>().reduce(
      n, [](auto a, auto b) HWY_ATTR { return hn::Mul(a, b); }, x, y);
}
template <class T>
T MaxOf(const T* x, int64_t n) {
  return Rows<T>().maximum(
      n, [](auto a) HWY_ATTR { return a; }, x);
}
template <class T>
T MaxSum(const T* x, const T* y, int64_t n) {
  return Rows<T>().maximum(
      n, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, x, y);
}
template <class T>
void MaxInto(const T* x, T a, T* m, int64_t n) {
  const Rows<T> r;
  const auto va = hn::Set(r.d, a);
  r.map(
      n, m, [&](auto xj, auto mj) HWY_ATTR { return hn::Max(mj, hn::Add(xj, va)); }, x, static_cast<const T*>(m));
}
template <class T>
void Axpy(T a, const T* x, T* y, int64_t n) {
  const Rows<T> r;
  const auto va = hn::Set(r.d, a);
  r.map(
      n, y, [&](auto xj, auto yj) HWY_ATTR { return hn::MulAdd(va, xj, yj); }, x, static_cast<const T*>(y));
}
template <class T>
void ExpOf(const T* x, T* y, int64_t n) {
  const Rows<T> r;
  r.map(
      n, y, [&](auto a) HWY_ATTR { return Exp(r.d, a); }, x);
}
template <class T>
T ExpShift(const T* x, T a, T* y, int64_t n) {
  const Rows<T> r;
  const auto va = hn::Set(r.d, a);
  return r.sum(
      n,
      [&](int64_t j) HWY_ATTR {
        const auto e = Exp(r.d, hn::Add(r.load(x + j), va));
        r.store(e, y + j);
        return e;
      },
      [&](int64_t j, size_t c) HWY_ATTR {
        const auto e = Exp(r.d, hn::Add(r.load(x + j, c), va));
        r.store(e, y + j, c);
        return r.keep(e, c);
      });
}
template <class T>
T SumExp(const T* x, const T* y, T a, int64_t n) {
  const Rows<T> r;
  const auto va = hn::Set(r.d, a);
  return r.reduce(
      n, [&](auto xj, auto yj) HWY_ATTR { return Exp(r.d, hn::Add(hn::Add(xj, yj), va)); }, x, y);
}
template <class T>
void SumExpInto(const T* x, const T* y, T a, T* s, int64_t n) {
  const Rows<T> r;
  const auto va = hn::Set(r.d, a);
  r.map(
      n, s, [&](auto xj, auto yj, auto sj) HWY_ATTR { return hn::Add(sj, Exp(r.d, hn::Add(hn::Add(xj, yj), va))); }, x, y, static_cast<const T*>(s));
}
template <class T>
T ExpInto(const T* x, const T* y, T a, T* p, int64_t n) {
  const Rows<T> r;
  const auto va = hn::Set(r.d, a);
  return r.sum(
      n,
      [&](int64_t j) HWY_ATTR {
        const auto e = Exp(r.d, hn::Add(hn::Add(r.load(x + j), r.load(y + j)), va));
        r.store(e, p + j);
        return e;
      },
      [&](int64_t j, size_t c) HWY_ATTR {
        const auto e = Exp(r.d, hn::Add(hn::Add(r.load(x + j, c), r.load(y + j, c)), va));
        r.store(e, p + j, c);
        return r.keep(e, c);
      });
}
template <class T>
void CenterInto(const T* p, T a, T* d, T* s, int64_t n) {
  const Rows<T> r;
  const auto va = hn::Set(r.d, a);
  r.each(
      n,
      [&](int64_t j) HWY_ATTR {
        const auto w = hn::Mul(r.load(p + j), hn::Sub(r.load(d + j), va));
        r.store(w, d + j);
        r.store(hn::Add(r.load(s + j), w), s + j);
      },
      [&](int64_t j, size_t c) HWY_ATTR {
        const auto w = hn::Mul(r.load(p + j, c), hn::Sub(r.load(d + j, c), va));
        r.store(w, d + j, c);
        r.store(hn::Add(r.load(s + j, c), w), s + j, c);
      });
}
template <class T>
void SubtractRowStep(const T* x, const T* y, T a, T scale, T* d, T* s, int64_t n) {
  const Rows<T> r;
  const auto va = hn::Set(r.d, a), vs = hn::Set(r.d, scale);
  r.each(
      n,
      [&](int64_t j) HWY_ATTR {
        const auto w = hn::Mul(vs, Exp(r.d, hn::Add(hn::Add(r.load(x + j), r.load(y + j)), va)));
        r.store(hn::Sub(r.load(d + j), w), d + j);
        r.store(hn::Sub(r.load(s + j), w), s + j);
      },
      [&](int64_t j, size_t c) HWY_ATTR {
        const auto w = hn::Mul(vs, Exp(r.d, hn::Add(hn::Add(r.load(x + j, c), r.load(y + j, c)), va)));
        r.store(hn::Sub(r.load(d + j, c), w), d + j, c);
        r.store(hn::Sub(r.load(s + j, c), w), s + j, c);
      });
}
template <class T>
T SubtractColumnStep(const T* x, const T* y, T a, const T* c, T* d, int64_t n) {
  const Rows<T> r;
  const auto va = hn::Set(r.d, a);
  return r.sum(
      n,
      [&](int64_t j) HWY_ATTR {
        const auto w = hn::Mul(r.load(c + j), Exp(r.d, hn::Add(hn::Add(r.load(x + j), r.load(y + j)), va)));
        r.store(hn::Sub(r.load(d + j), w), d + j);
        return w;
      },
      [&](int64_t j, size_t k) HWY_ATTR {
        const auto w = hn::Mul(r.load(c + j, k), Exp(r.d, hn::Add(hn::Add(r.load(x + j, k), r.load(y + j, k)), va)));
        r.store(hn::Sub(r.load(d + j, k), w), d + j, k);
        return w;  // c is 0 beyond the end
      });
}

template <class T>
VectorMath<T> Table() {
  return {Sum<T>,        Dot<T>,     MaxOf<T>,      MaxSum<T>,          MaxInto<T>,           Axpy<T>, ExpOf<T>, ExpShift<T>, SumExp<T>,
          SumExpInto<T>, ExpInto<T>, CenterInto<T>, SubtractRowStep<T>, SubtractColumnStep<T>};
}
VectorMath<float> TableF32() { return Table<float>(); }
VectorMath<double> TableF64() { return Table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace sinkgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinkgrad::cpu {
HWY_EXPORT(TableF32);
HWY_EXPORT(TableF64);

template <>
const VectorMath<float>& vector_math<float>() {
  static const VectorMath<float> table = HWY_DYNAMIC_DISPATCH(TableF32)();
  return table;
}
template <>
const VectorMath<double>& vector_math<double>() {
  static const VectorMath<double> table = HWY_DYNAMIC_DISPATCH(TableF64)();
  return table;
}
}  // namespace sinkgrad::cpu
#endif
