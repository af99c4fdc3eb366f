// The inner loops of fused attention, for one instruction set: a microkernel for products, packing, exp2 and log2. Included once per
// instruction set, inside sinkgrad::cpu::HWY_NAMESPACE, by files that Highway compiles several times.
//
// A right operand is packed in panels: columns in groups of two vectors, each group (k, 2 vectors) one after the other, so that the
// microkernel streams it. Widths are padded to whole panels with copies of column 0 (scores) or zeros.
#if defined(SINKGRAD_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SINKGRAD_TILE_INL
#undef SINKGRAD_TILE_INL
#else
#define SINKGRAD_TILE_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::CappedTag<T, 64 / sizeof(T)>;
template <class T>
using Vec = hn::Vec<Tag<T>>;
template <class T>
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));
/// Columns of a panel.
template <class T>
constexpr int64_t kPanel = 2 * kLanes<T>;
/// Rows of the microkernel: its accumulators and two vectors of the right operand fill the registers.
#if HWY_TARGET <= HWY_AVX3
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 4;
#endif

template <class T>
constexpr int64_t padded(int64_t columns) {
  return (columns + kPanel<T> - 1) / kPanel<T> * kPanel<T>;
}

template <class T>
HWY_INLINE Vec<T> Load(const T* p) {
  return hn::LoadU(Tag<T>(), p);
}
template <class T>
HWY_INLINE void Store(Vec<T> v, T* p) {
  hn::StoreU(v, Tag<T>(), p);
}
template <class T>
HWY_INLINE Vec<T> Set(T x) {
  return hn::Set(Tag<T>(), x);
}
template <class T>
HWY_INLINE T Total(Vec<T> v) {
  return hn::GetLane(hn::SumOfLanes(Tag<T>(), v));
}
template <class T>
HWY_INLINE T Largest(Vec<T> v) {
  return hn::GetLane(hn::MaxOfLanes(Tag<T>(), v));
}

/// 2^x: x = k + r with |r| <= 1/2, a minimax polynomial in r (relative error 2e-9 and 4e-18), exponent bits for 2^k. Below the
/// smallest normal number the result is 0; above it overflows to garbage, which bounded sums exclude. NaN stays NaN.
template <class T>
HWY_INLINE Vec<T> Exp2(Vec<T> x) {
  const Tag<T> d;
  const hn::RebindToSigned<Tag<T>> di;
  constexpr bool kSingle = sizeof(T) == 4;
  const auto k = hn::Round(x);
  const auto r = hn::Sub(x, k);
  Vec<T> p;
  if constexpr (kSingle) {
    p = hn::Set(d, T(1.5353361578653234095e-4));
    p = hn::MulAdd(p, r, hn::Set(d, T(1.3398874636111836176e-3)));
    p = hn::MulAdd(p, r, hn::Set(d, T(9.6184373609209639275e-3)));
    p = hn::MulAdd(p, r, hn::Set(d, T(5.5503324706419660742e-2)));
    p = hn::MulAdd(p, r, hn::Set(d, T(2.4022647913585305480e-1)));
    p = hn::MulAdd(p, r, hn::Set(d, T(6.9314720285524164710e-1)));
  } else {
    p = hn::Set(d, T(4.4347688857724158206e-10));
    for (const double c :
         {7.0737832597270495298e-9, 1.0178199587354416797e-7, 1.3215435282270144624e-6, 1.5252733493092215316e-5, 1.5403530457112122737e-4,
          1.3333558146774654476e-3, 9.6181291075940920126e-3, 5.5504108664820083099e-2, 2.4022650695910131260e-1, 6.9314718055994532581e-1})
      p = hn::MulAdd(p, r, hn::Set(d, T(c)));
  }
  p = hn::MulAdd(p, r, hn::Set(d, T(1)));
  constexpr int kBits = kSingle ? 23 : 52, kBias = kSingle ? 127 : 1023;
  const auto power = hn::BitCast(d, hn::ShiftLeft<kBits>(hn::Add(hn::ConvertTo(di, k), hn::Set(di, kBias))));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, T(kSingle ? -126 : -1022))), hn::Mul(p, power));
}

/// log2 of positive normal numbers: x = 2^k m with m in [sqrt(1/2), sqrt(2)], the series of artanh for (m-1)/(m+1).
template <class T>
HWY_INLINE Vec<T> Log2(Vec<T> x) {
  const Tag<T> d;
  const hn::RebindToSigned<Tag<T>> di;
  using I = hn::TFromD<decltype(di)>;
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr int kBits = kSingle ? 23 : 52;
  constexpr I kRoot = kSingle ? static_cast<I>(0x3f3504f3) : static_cast<I>(0x3fe6a09e667f3bcd);  // sqrt(1/2)
  const auto bits = hn::BitCast(di, x);
  const auto k = hn::ShiftRight<kBits>(hn::Sub(bits, hn::Set(di, kRoot)));
  const auto m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<kBits>(k)));
  const auto s = hn::Div(hn::Sub(m, hn::Set(d, T(1))), hn::Add(m, hn::Set(d, T(1)))), t = hn::Mul(s, s);
  Vec<T> p = hn::Set(d, T(kSingle ? 1.0 / 9 : 1.0 / 23));
  for (int odd = kSingle ? 7 : 21; odd >= 1; odd -= 2) p = hn::MulAdd(p, t, hn::Set(d, T(1) / T(odd)));
  return hn::MulAdd(hn::Mul(s, hn::Set(d, T(2.8853900817779268))), p, hn::ConvertTo(d, k));
}

/// c (R rows, W vectors) = or += a b, with a(i, k) at a[i a_row + k a_k] and b(k) at b + k b_row.
template <int R, int W, class T>
HWY_INLINE void Tile(int64_t depth, const T* HWY_RESTRICT a, int64_t a_row, int64_t a_k, const T* HWY_RESTRICT b, int64_t b_row, T* HWY_RESTRICT c,
                     int64_t c_row, bool add) {
  Vec<T> sum[R][W];
  for (int i = 0; i < R; ++i)
    for (int w = 0; w < W; ++w) sum[i][w] = add ? Load(c + i * c_row + w * kLanes<T>) : hn::Zero(Tag<T>());
  for (int64_t k = 0; k < depth; ++k) {
    Vec<T> right[W];
    for (int w = 0; w < W; ++w) right[w] = Load(b + k * b_row + w * kLanes<T>);
    for (int i = 0; i < R; ++i) {
      const Vec<T> left = Set(a[i * a_row + k * a_k]);
      for (int w = 0; w < W; ++w) sum[i][w] = hn::MulAdd(left, right[w], sum[i][w]);
    }
  }
  for (int i = 0; i < R; ++i)
    for (int w = 0; w < W; ++w) Store(sum[i][w], c + i * c_row + w * kLanes<T>);
}

template <int W, class T>
HWY_INLINE void TileRows(int64_t rows, int64_t depth, const T* a, int64_t a_row, int64_t a_k, const T* b, T* c, int64_t c_row, bool add) {
  int64_t i = 0;
  auto run = [&]<int R>() HWY_ATTR {
    for (; i + R <= rows; i += R) Tile<R, W>(depth, a + i * a_row, a_row, a_k, b, kPanel<T>, c + i * c_row, c_row, add);
  };
  run.template operator()<kTileRows>();
  if constexpr (kTileRows > 8) run.template operator()<8>();
  if constexpr (kTileRows > 4) run.template operator()<4>();
  run.template operator()<2>();
  run.template operator()<1>();
}

/// c (rows, padded width) = or += a (rows, depth) times packed panels of b, `panel_size` elements apart. `width` counts the columns that
/// are wanted; whole vectors are written.
template <class T>
void Product(int64_t rows, int64_t depth, const T* a, int64_t a_row, int64_t a_k, const T* panels, int64_t panel_size, int64_t width, T* c,
             int64_t c_row, bool add) {
  for (int64_t j = 0; j < width; j += kPanel<T>, panels += panel_size) {
    if (width - j > kLanes<T>)
      TileRows<2>(rows, depth, a, a_row, a_k, panels, c + j, c_row, add);
    else
      TileRows<1>(rows, depth, a, a_row, a_k, panels, c + j, c_row, add);
  }
}

/// Packs b (depth, width), rows `row` apart, times `scale` and, where given, times row_scale[k]; columns beyond width are 0.
template <class T>
void PackRows(int64_t depth, int64_t width, const T* b, int64_t row, T scale, const T* row_scale, T* panels) {
  for (int64_t j = 0; j < width; j += kPanel<T>) {
    const int64_t columns = std::min(kPanel<T>, width - j);
    for (int64_t k = 0; k < depth; ++k, panels += kPanel<T>) {
      const T* from = b + k * row + j;
      const T factor = row_scale ? scale * row_scale[k] : scale;
      if (columns == kPanel<T>) {
        Store(hn::Mul(Load(from), Set(factor)), panels);
        Store(hn::Mul(Load(from + kLanes<T>), Set(factor)), panels + kLanes<T>);
      } else {
        for (int64_t w = 0; w < kPanel<T>; ++w) panels[w] = w < columns ? from[w] * factor : T(0);
      }
    }
  }
}

/// to(k, w) = from(w, k) for a square block of the lanes of 16 bytes.
template <class T>
HWY_INLINE void TransposeBlock(const T* from, int64_t from_row, T* to, int64_t to_row) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t k = 0; k < static_cast<int64_t>(16 / sizeof(T)); ++k)
    for (int64_t w = 0; w < static_cast<int64_t>(16 / sizeof(T)); ++w) to[k * to_row + w] = from[w * from_row + k];
#else
  const hn::FixedTag<T, 16 / sizeof(T)> d;
  if constexpr (sizeof(T) == 4) {
    const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_row), r2 = hn::LoadU(d, from + 2 * from_row),
               r3 = hn::LoadU(d, from + 3 * from_row);
    const auto a = hn::InterleaveLower(d, r0, r1), b = hn::InterleaveLower(d, r2, r3), c = hn::InterleaveUpper(d, r0, r1),
               e = hn::InterleaveUpper(d, r2, r3);
    hn::StoreU(hn::ConcatLowerLower(d, b, a), d, to);
    hn::StoreU(hn::ConcatUpperUpper(d, b, a), d, to + to_row);
    hn::StoreU(hn::ConcatLowerLower(d, e, c), d, to + 2 * to_row);
    hn::StoreU(hn::ConcatUpperUpper(d, e, c), d, to + 3 * to_row);
  } else {
    const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_row);
    hn::StoreU(hn::InterleaveLower(d, r0, r1), d, to);
    hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, to + to_row);
  }
#endif
}

/// Packs the transpose of b (width, depth), rows `row` apart, into the first `depth` rows of panels of `panel_size` elements. Columns
/// beyond width repeat column 0, so that they never exceed a row's maximum.
template <class T>
void PackTransposed(int64_t depth, int64_t width, const T* b, int64_t row, T* panels, int64_t panel_size) {
  constexpr int64_t kBlock = 16 / sizeof(T);  // of TransposeBlock
  for (int64_t j = 0; j < width; j += kPanel<T>, panels += panel_size) {
    int64_t w = 0;
    for (; w + kBlock <= std::min(kPanel<T>, width - j); w += kBlock) {
      const T* from = b + (j + w) * row;
      int64_t k = 0;
      for (; k + kBlock <= depth; k += kBlock) TransposeBlock(from + k, row, panels + k * kPanel<T> + w, kPanel<T>);
      for (; k < depth; ++k)
        for (int64_t i = 0; i < kBlock; ++i) panels[k * kPanel<T> + w + i] = from[i * row + k];
    }
    for (; w < kPanel<T>; ++w) {
      const T* from = b + (j + w < width ? j + w : 0) * row;
      for (int64_t k = 0; k < depth; ++k) panels[k * kPanel<T> + w] = from[k];
    }
  }
}

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
