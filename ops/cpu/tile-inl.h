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
/// Rows of the microkernel, and of the groups that row primitives work on at once.
#if HWY_TARGET <= HWY_AVX3
constexpr int kTileRows = 8;
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
  const auto vanishes = hn::Lt(x, hn::Set(d, T(kSingle ? -126 : -1022)));
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if constexpr (kSingle)
    return hn::IfThenZeroElse(vanishes, Vec<T>{_mm512_scalef_ps(p.raw, k.raw)});
  else
    return hn::IfThenZeroElse(vanishes, Vec<T>{_mm512_scalef_pd(p.raw, k.raw)});
#else
  constexpr int kBits = kSingle ? 23 : 52, kBias = kSingle ? 127 : 1023;
  const hn::RebindToSigned<Tag<T>> di;
  const auto power = hn::BitCast(d, hn::ShiftLeft<kBits>(hn::Add(hn::ConvertTo(di, k), hn::Set(di, kBias))));
  return hn::IfThenZeroElse(vanishes, hn::Mul(p, power));
#endif
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

/// Memory that will be wanted after the present products: fetched a few lines per tile, so that it arrives while they run.
class Ahead {
 public:
  /// (rows, columns) with rows `row` elements apart
  template <class T>
  void want(const T* from, int64_t rows, int64_t row, int64_t columns) {
    if (from && count_ < kMost)
      blocks_[count_++] = {reinterpret_cast<const char*>(from), rows, row * static_cast<int64_t>(sizeof(T)),
                           columns * static_cast<int64_t>(sizeof(T))};
  }
  HWY_INLINE void step() {
    if (block_ == count_) return;
    constexpr int64_t kLine = 64, kLines = 24;
    for (int64_t lines = 0; lines < kLines && block_ < count_;) {
      const Block& b = blocks_[block_];
      for (int64_t at = 0; at < b.bytes; at += kLine, ++lines) __builtin_prefetch(b.from + done_ * b.row + at, 0, 3);
      if (++done_ >= b.rows) {
        ++block_;
        done_ = 0;
      }
    }
  }

 private:
  struct Block {
    const char* from;
    int64_t rows, row, bytes;
  };
  static constexpr int kMost = 8;
  Block blocks_[kMost];
  int count_ = 0, block_ = 0;
  int64_t done_ = 0;
};

/// One term of a sum of products: a left operand with element (i, k) at left[i row + k step] and a right operand in panels, of which
/// `panel_size` elements apart one follows the other.
template <class T>
struct Term {
  const T* left;
  int64_t row, step;
  const T* panels;
  int64_t panel_size, depth;
};

/// Rows i .. i+R-1 and W vectors from column j of the sum of the terms, left to `end(i, j, sums)`. `panel` is the index of column j's panel.
template <int R, int W, class T, size_t Terms, class End>
HWY_INLINE void Tile(const Term<T> (&terms)[Terms], int64_t i, int64_t j, int64_t panel, const End& end, Ahead& ahead) {
  ahead.step();
  Vec<T> sums[R][W];
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) sums[r][w] = hn::Zero(Tag<T>());
  for (const Term<T>& term : terms) {
    const T* HWY_RESTRICT left = term.left + i * term.row;
    const T* HWY_RESTRICT right = term.panels + panel * term.panel_size;
    const int64_t row = term.row, step = term.step;
    for (int64_t k = 0; k < term.depth; ++k) {
      Vec<T> b[W];
      for (int w = 0; w < W; ++w) b[w] = Load(right + k * kPanel<T> + w * kLanes<T>);
      for (int r = 0; r < R; ++r) {
        const Vec<T> a = Set(left[r * row + k * step]);
        for (int w = 0; w < W; ++w) sums[r][w] = hn::MulAdd(a, b[w], sums[r][w]);
      }
    }
  }
  end(i, j, sums);
}

template <int W, class T, size_t Terms, class End>
HWY_INLINE void TileRows(const Term<T> (&terms)[Terms], int64_t rows, int64_t j, int64_t panel, const End& end, Ahead& ahead) {
  int64_t i = 0;
  auto run = [&]<int R>() HWY_ATTR {
    for (; i + R <= rows; i += R) Tile<R, W>(terms, i, j, panel, end, ahead);
  };
  run.template operator()<kTileRows>();
  if constexpr (kTileRows > 4) run.template operator()<4>();
  run.template operator()<2>();
  run.template operator()<1>();
}

/// The sum of the terms, tile by tile, for `rows` rows and at least `width` columns: whole vectors.
template <class T, size_t Terms, class End>
HWY_INLINE void Product(int64_t rows, int64_t width, const Term<T> (&terms)[Terms], const End& end, Ahead& ahead) {
  for (int64_t j = 0, panel = 0; j < width; j += kPanel<T>, ++panel) {
    if (width - j > kLanes<T>)
      TileRows<2>(terms, rows, j, panel, end, ahead);
    else
      TileRows<1>(terms, rows, j, panel, end, ahead);
  }
}

// What becomes of a tile: ends for Product.

/// c = sums
template <class T>
struct StoreTile {
  T* c;
  int64_t row;
  template <int R, int W>
  HWY_INLINE void operator()(int64_t i, int64_t j, const Vec<T> (&sums)[R][W]) const {
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w) Store(sums[r][w], c + (i + r) * row + j + w * kLanes<T>);
  }
};

/// c += sums
template <class T>
struct AddTile {
  T* c;
  int64_t row;
  template <int R, int W>
  HWY_INLINE void operator()(int64_t i, int64_t j, const Vec<T> (&sums)[R][W]) const {
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w) {
        T* to = c + (i + r) * row + j + w * kLanes<T>;
        Store(hn::Add(Load(to), sums[r][w]), to);
      }
  }
};

/// c = p o sums, entry by entry
template <class T>
struct MultiplyTile {
  const T* p;
  T* c;
  int64_t row;
  template <int R, int W>
  HWY_INLINE void operator()(int64_t i, int64_t j, const Vec<T> (&sums)[R][W]) const {
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w) {
        const int64_t at = (i + r) * row + j + w * kLanes<T>;
        Store(hn::Mul(Load(p + at), sums[r][w]), c + at);
      }
  }
};

/// Rows of a tensor: c = factor_i sums, or c += where `add`, for `columns` columns; nothing beyond them is touched. `factors` may be null.
template <class T>
struct OutputTile {
  const T* factors;
  T* c;
  int64_t row, columns;
  bool add;
  template <int R, int W>
  HWY_INLINE void operator()(int64_t i, int64_t j, const Vec<T> (&sums)[R][W]) const {
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w) {
        const Vec<T> value = factors ? hn::Mul(Set(factors[i + r]), sums[r][w]) : sums[r][w];
        const int64_t at = j + w * kLanes<T>;
        T* to = c + (i + r) * row + at;
        if (at + kLanes<T> <= columns) {
          Store(add ? hn::Add(Load(to), value) : value, to);
        } else {
          HWY_ALIGN T spill[kLanes<T>];
          Store(value, spill);
          for (int64_t l = 0; at + l < columns; ++l) to[l] = add ? to[l] + spill[l] : spill[l];
        }
      }
  }
};

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

/// to(k, w) = factor from(w, k) for a square block of kLanes rows.
template <class T>
HWY_INLINE void TransposeBlock(const T* from, [[maybe_unused]] int64_t from_row, T factor, T* to, [[maybe_unused]] int64_t to_row) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = factor * from[0];
#else
  const Tag<T> d;
  constexpr int64_t kBlock = 16 / sizeof(T), kBlocks = kLanes<T> / kBlock;
  Vec<T> t[kBlocks][kBlock];  // t[g][q]: in its block b, rows g kBlock .. of column b kBlock + q
  for (int64_t g = 0; g < kBlocks; ++g) {
    const T* rows = from + g * kBlock * from_row;
    Vec<T> r[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) r[i] = hn::Mul(Load(rows + i * from_row), Set(factor));
    if constexpr (sizeof(T) == 4) {
      const hn::Repartition<double, Tag<T>> pairs;
      auto pick = [&](auto x, auto y, bool upper) HWY_ATTR {
        const auto a = hn::BitCast(pairs, x), b = hn::BitCast(pairs, y);
        return hn::BitCast(d, upper ? hn::InterleaveUpper(pairs, a, b) : hn::InterleaveLower(pairs, a, b));
      };
      const auto low01 = hn::InterleaveLower(d, r[0], r[1]), low23 = hn::InterleaveLower(d, r[2], r[3]), high01 = hn::InterleaveUpper(d, r[0], r[1]),
                 high23 = hn::InterleaveUpper(d, r[2], r[3]);
      t[g][0] = pick(low01, low23, false);
      t[g][1] = pick(low01, low23, true);
      t[g][2] = pick(high01, high23, false);
      t[g][3] = pick(high01, high23, true);
    } else {
      t[g][0] = hn::InterleaveLower(d, r[0], r[1]);
      t[g][1] = hn::InterleaveUpper(d, r[0], r[1]);
    }
  }
  for (int64_t q = 0; q < kBlock; ++q) {
    auto store = [&](int64_t b, Vec<T> v) HWY_ATTR { Store(v, to + (b * kBlock + q) * to_row); };
    if constexpr (kBlocks == 1) {
      store(0, t[0][q]);
    } else if constexpr (kBlocks == 2) {
      store(0, hn::ConcatLowerLower(d, t[1][q], t[0][q]));
      store(1, hn::ConcatUpperUpper(d, t[1][q], t[0][q]));
    } else {
      auto store_half = [&](int64_t b, Vec<T> even, Vec<T> odd) HWY_ATTR {  // blocks b, b+1 of rows 0, 2 and of rows 1, 3
        store(b, hn::OddEvenBlocks(hn::SwapAdjacentBlocks(odd), even));
        store(b + 1, hn::OddEvenBlocks(odd, hn::SwapAdjacentBlocks(even)));
      };
      store_half(0, hn::ConcatLowerLower(d, t[2][q], t[0][q]), hn::ConcatLowerLower(d, t[3][q], t[1][q]));
      store_half(2, hn::ConcatUpperUpper(d, t[2][q], t[0][q]), hn::ConcatUpperUpper(d, t[3][q], t[1][q]));
    }
  }
#endif
}

/// Packs the transpose of b (width, depth), rows `row` apart, times `factor`. Columns beyond width repeat column 0, so that they never
/// exceed a row's maximum.
template <class T>
void PackTransposed(int64_t depth, int64_t width, const T* b, int64_t row, T factor, T* panels) {
  for (int64_t j = 0; j < width; j += kPanel<T>, panels += depth * kPanel<T>) {
    int64_t w = 0;
    for (; w + kLanes<T> <= std::min(kPanel<T>, width - j); w += kLanes<T>) {
      const T* from = b + (j + w) * row;
      int64_t k = 0;
      for (; k + kLanes<T> <= depth; k += kLanes<T>) TransposeBlock(from + k, row, factor, panels + k * kPanel<T> + w, kPanel<T>);
      for (; k < depth; ++k)
        for (int64_t i = 0; i < kLanes<T>; ++i) panels[k * kPanel<T> + w + i] = factor * from[i * row + k];
    }
    for (; w < kPanel<T>; ++w) {
      const T* from = b + (j + w < width ? j + w : 0) * row;
      for (int64_t k = 0; k < depth; ++k) panels[k * kPanel<T> + w] = factor * from[k];
    }
  }
}

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
