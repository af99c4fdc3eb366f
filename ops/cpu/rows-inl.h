// Walks over rows of any length in vectors; included by files that are compiled once per instruction set.
#if defined(SINKGRAD_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SINKGRAD_ROWS_INL
#undef SINKGRAD_ROWS_INL
#else
#define SINKGRAD_ROWS_INL
#endif
#include <hwy/highway.h>

#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls body(load, store) for full vectors and, for the rest, with zero-padded loads and partial stores.
/// Lanes beyond n load as 0, so bodies that reduce pass their terms through `keep`.
template <class T>
struct Rows {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  D d;

  template <class Full, class Rest>
  HWY_INLINE void each(int64_t n, Full full, Rest rest) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) full(j);
    if (j < n) rest(j, static_cast<size_t>(n - j));
  }
  HWY_INLINE V load(const T* p) const { return hn::LoadU(d, p); }
  HWY_INLINE V load(const T* p, size_t count) const {
    HWY_ALIGN T buffer[hn::MaxLanes(D())] = {};
    for (size_t i = 0; i < count; ++i) buffer[i] = p[i];
    return hn::Load(d, buffer);
  }
  HWY_INLINE void store(V v, T* p) const { hn::StoreU(v, d, p); }
  HWY_INLINE void store(V v, T* p, size_t count) const {
    HWY_ALIGN T buffer[hn::MaxLanes(D())];
    hn::Store(v, d, buffer);
    for (size_t i = 0; i < count; ++i) p[i] = buffer[i];
  }
  HWY_INLINE V keep(V v, size_t count) const { return hn::IfThenElseZero(hn::FirstN(d, count), v); }
  HWY_INLINE T total(V v) const { return hn::GetLane(hn::SumOfLanes(d, v)); }

  /// y_j = f(x_j...), stored.
  template <class F, class... In>
  HWY_INLINE void map(int64_t n, T* y, F f, const In*... x) const {
    each(
        n, [&](int64_t j) HWY_ATTR { store(f(load(x + j)...), y + j); },
        [&](int64_t j, size_t c) HWY_ATTR { store(f(load(x + j, c)...), y + j, c); });
  }
  /// The sum of term(j) over full vectors and of rest(j, count), 0 beyond `count`. 64 bytes of sums whatever a vector holds: narrow
  /// vectors would make longer chains, and more rounding errors.
  template <class Full, class Rest>
  HWY_INLINE T sum(int64_t n, Full term, Rest rest) const {
    constexpr auto lanes = static_cast<int64_t>(hn::MaxLanes(D()));
    constexpr int count = lanes * sizeof(T) < 64 ? 64 / (lanes * sizeof(T)) : 1;
    V sums[count];
    for (V& v : sums) v = hn::Zero(d);
    int64_t j = 0;
    for (; j + count * lanes <= n; j += count * lanes)
      for (int k = 0; k < count; ++k) sums[k] = hn::Add(sums[k], term(j + k * lanes));
    for (int k = 0; k < count; ++k)
      if (j + lanes <= n) {
        sums[k] = hn::Add(sums[k], term(j));
        j += lanes;
      }
    if (j < n) sums[0] = hn::Add(sums[0], rest(j, static_cast<size_t>(n - j)));
    for (int half = count / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k) sums[k] = hn::Add(sums[k], sums[k + half]);
    return hn::GetLane(hn::SumOfLanes(d, sums[0]));
  }
  /// sum_j f(x_j...).
  template <class F, class... In>
  HWY_INLINE T reduce(int64_t n, F f, const In*... x) const {
    return sum(
        n, [&](int64_t j) HWY_ATTR { return f(load(x + j)...); }, [&](int64_t j, size_t c) HWY_ATTR { return keep(f(load(x + j, c)...), c); });
  }
  /// max_j f(x_j...).
  template <class F, class... In>
  HWY_INLINE T maximum(int64_t n, F f, const In*... x) const {
    const V lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
    V a = lowest;
    each(
        n, [&](int64_t j) HWY_ATTR { a = hn::Max(a, f(load(x + j)...)); },
        [&](int64_t j, size_t c) HWY_ATTR { a = hn::Max(a, hn::IfThenElse(hn::FirstN(d, c), f(load(x + j, c)...), lowest)); });
    const T top = hn::GetLane(hn::MaxOfLanes(d, a));
    // Max may lose a NaN among elements that are all -inf otherwise; their sum keeps it.
    return top > -std::numeric_limits<T>::infinity() || n == 0 ? top : reduce(n, f, x...);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace sinkgrad::cpu
HWY_AFTER_NAMESPACE();
#endif
