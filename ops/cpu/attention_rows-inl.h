// Row primitives of fused attention, for one instruction set. They take a group of kTileRows rows at once, so that a vector that all
// rows share is loaded once and the sums over rows and over lanes cost little. Rows have m columns in whole vectors ("width"); what is
// beyond m holds 0 once exponentials are taken.
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
template <class T>
constexpr int64_t whole_vectors(int64_t columns) {
  return (columns + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

/// One vector for each row of a group, and how such vectors become one number for each row.
template <class T>
struct Group {
  Vec<T> of[kTileRows];
  HWY_INLINE explicit Group(T value) {
    for (Vec<T>& v : of) v = Set(value);
  }
  /// out[r] = op over the lanes of row r.
  template <class Op>
  HWY_INLINE void reduce([[maybe_unused]] const Op& op, T* out) {
    int count = kTileRows;
#if HWY_TARGET != HWY_SCALAR
    for (int64_t lanes = kLanes<T>; lanes > 1; lanes /= 2) {
      const int half = count > 1 ? count / 2 : 1;
      for (int r = 0; r < half; ++r) {
        const Vec<T> low = of[2 * r % count], high = of[(2 * r + 1) % count];
        of[r] = op(hn::ConcatEven(Tag<T>(), high, low), hn::ConcatOdd(Tag<T>(), high, low));
      }
      count = half;
    }
#endif
    if constexpr (kTileRows < kLanes<T>) {
      const hn::Half<Tag<T>> half;
      hn::StoreU(hn::LowerHalf(half, of[0]), half, out);
    } else {
      for (int r = 0; r < count; ++r) Store(of[r], out + r * kLanes<T>);
    }
  }
  HWY_INLINE void sum(T* out) {
    reduce([](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, out);
  }
  HWY_INLINE void max(T* out) {
    reduce([](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }, out);
  }
};
template <class T>
constexpr bool kReducible = kLanes<T> <= 2 * kTileRows;
static_assert(kReducible<float> && kReducible<double>);

/// out[r] = max_j (x_rj + bias_j); bias may be null, padding must not exceed the rest.
template <class T>
HWY_INLINE void GroupMax(const T* x, int64_t row, const T* bias, int64_t width, T* out) {
  Group<T> top(kLowest<T>);
  if (bias) {
    for (int64_t j = 0; j < width; j += kLanes<T>) {
      const Vec<T> b = Load(bias + j);
      for (int r = 0; r < kTileRows; ++r) top.of[r] = hn::Max(top.of[r], hn::Add(Load(x + r * row + j), b));
    }
  } else {
    for (int64_t j = 0; j < width; j += kLanes<T>)
      for (int r = 0; r < kTileRows; ++r) top.of[r] = hn::Max(top.of[r], Load(x + r * row + j));
  }
  top.max(out);
}

/// x_rj = 2^((x_rj - top_r) + (shift_r + bias_j)), padding 0; totals[r] = sum_j of that times weight_j. bias and weight may be null.
template <bool kBias, bool kWeight, class T>
HWY_INLINE void GroupExpOf(T* x, int64_t row, const T* top, const T* shift, const T* bias, const T* weight, int64_t m, T* totals) {
  Group<T> sums(T(0));
  auto columns = [&](int64_t j, auto keep) HWY_ATTR {
    const Vec<T> b = kBias ? Load(bias + j) : hn::Zero(Tag<T>()), w = kWeight ? Load(weight + j) : hn::Zero(Tag<T>());
    for (int r = 0; r < kTileRows; ++r) {
      T* at = x + r * row + j;
      const Vec<T> offset = kBias ? hn::Add(Set(shift[r]), b) : Set(shift[r]);
      const Vec<T> y = keep(Exp2<T>(hn::Add(hn::Sub(Load(at), Set(top[r])), offset)));
      sums.of[r] = kWeight ? hn::MulAdd(y, w, sums.of[r]) : hn::Add(y, sums.of[r]);
      Store(y, at);
    }
  };
  int64_t j = 0;
  for (; j + kLanes<T> <= m; j += kLanes<T>) columns(j, [](auto y) HWY_ATTR { return y; });
  if (j < m) {
    const auto present = hn::FirstN(Tag<T>(), static_cast<size_t>(m - j));
    columns(j, [&](auto y) HWY_ATTR { return hn::IfThenElseZero(present, y); });
  }
  sums.sum(totals);
}
template <class T>
HWY_INLINE void GroupExp(T* x, int64_t row, const T* top, const T* shift, const T* bias, const T* weight, int64_t m, T* totals) {
  if (bias)
    weight ? GroupExpOf<true, true>(x, row, top, shift, bias, weight, m, totals)
           : GroupExpOf<true, false>(x, row, top, shift, bias, weight, m, totals);
  else
    weight ? GroupExpOf<false, true>(x, row, top, shift, bias, weight, m, totals)
           : GroupExpOf<false, false>(x, row, top, shift, bias, weight, m, totals);
}

/// totals[r] = sum_j x_rj y_j
template <class T>
HWY_INLINE void GroupDot(const T* x, int64_t row, const T* y, int64_t width, T* totals) {
  Group<T> sums(T(0));
  for (int64_t j = 0; j < width; j += kLanes<T>) {
    const Vec<T> b = Load(y + j);
    for (int r = 0; r < kTileRows; ++r) sums.of[r] = hn::MulAdd(Load(x + r * row + j), b, sums.of[r]);
  }
  sums.sum(totals);
}

/// y_j += sum_r factor_r x_rj
template <class T>
HWY_INLINE void GroupAdd(const T* factor, const T* x, int64_t row, T* y, int64_t width) {
  for (int64_t j = 0; j < width; j += kLanes<T>) {
    Vec<T> even = Load(y + j), odd = hn::Zero(Tag<T>());
    for (int r = 0; r < kTileRows; r += 2) {
      even = hn::MulAdd(Set(factor[r]), Load(x + r * row + j), even);
      odd = hn::MulAdd(Set(factor[r + 1]), Load(x + (r + 1) * row + j), odd);
    }
    Store(hn::Add(even, odd), y + j);
  }
}

/// As GroupAdd, and top_j = max(top_j, max_r factor_r x_rj).
template <class T>
HWY_INLINE void GroupMeasure(const T* factor, const T* x, int64_t row, T* y, T* top, int64_t width) {
  for (int64_t j = 0; j < width; j += kLanes<T>) {
    Vec<T> sum = hn::Zero(Tag<T>()), largest = Load(top + j);
    for (int r = 0; r < kTileRows; ++r) {
      const Vec<T> p = hn::Mul(Set(factor[r]), Load(x + r * row + j));
      sum = hn::Add(sum, p);
      largest = hn::Max(largest, p);
    }
    Store(hn::Add(Load(y + j), sum), y + j);
    Store(largest, top + j);
  }
}

/// top_j = max(top_j, max_r (x_rj - a_r) + b_r)
template <class T>
HWY_INLINE void GroupColumnMax(const T* x, int64_t row, const T* a, const T* b, T* top, int64_t width) {
  for (int64_t j = 0; j < width; j += kLanes<T>) {
    Vec<T> largest = Load(top + j);
    for (int r = 0; r < kTileRows; ++r) largest = hn::Max(largest, hn::Add(hn::Sub(Load(x + r * row + j), Set(a[r])), Set(b[r])));
    Store(largest, top + j);
  }
}

/// out[i] = sum_c x_ic y_ic over `columns` columns, for rows of any length.
template <class T>
HWY_INLINE void RowProducts(int64_t rows, int64_t columns, const T* x, int64_t x_row, const T* y, int64_t y_row, T* out) {
  T sums[kTileRows];
  const int64_t whole = columns / kLanes<T> * kLanes<T>;
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t count = std::min<int64_t>(kTileRows, rows - i);
    Group<T> group(T(0));
    for (int64_t r = 0; r < count; ++r)
      for (int64_t c = 0; c < whole; c += kLanes<T>)
        group.of[r] = hn::MulAdd(Load(x + (i + r) * x_row + c), Load(y + (i + r) * y_row + c), group.of[r]);
    group.sum(sums);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = whole; c < columns; ++c) sums[r] += x[(i + r) * x_row + c] * y[(i + r) * y_row + c];
      out[i + r] = sums[r];
    }
  }
}

/// Calls f(i, a vector of each of `x` at i) for whole vectors that cover n numbers.
template <class T, class F, class... X>
HWY_INLINE void Vectors(int64_t n, F f, const X*... x) {
  for (int64_t j = 0; j < n; j += kLanes<T>) f(j, Load(x + j)...);
}
template <class T>
HWY_INLINE T LargestOf(Vec<T> v) {
  return hn::GetLane(hn::MaxOfLanes(Tag<T>(), v));
}

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
