// The inner loops of fused attention, for one instruction set: a microkernel for products, packing, exp2 and log2. Included once per
// instruction set, inside sinkgrad::cpu::HWY_NAMESPACE, by files that Highway compiles several times.
//
// A right operand is packed in panels: columns in groups of two vectors, each group (k, 2 vectors) one after the other, so that the
// microkernel streams it. Widths are padded to whole panels with copies of column 0 (scores) or zeros. Depths count elements of the operand's
// type U: numbers, or pairs of them (operand-inl.h).
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

#include "ops/cpu/amx-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {
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
HWY_INLINE T Total(Vec<T> v) {
  return hn::GetLane(hn::SumOfLanes(Tag<T>(), v));
}
template <class T>
HWY_INLINE T Largest(Vec<T> v) {
  return hn::GetLane(hn::MaxOfLanes(Tag<T>(), v));
}

/// 2^x: x = k + r with 0 <= r < 1, a minimax polynomial in r (relative error 2.0e-9 and 3.2e-18), exponent bits for 2^k. Below the
/// smallest normal number the result is 0; above it overflows to garbage, which bounded sums exclude. NaN stays NaN.
template <class T>
HWY_INLINE Vec<T> Exp2(Vec<T> x) {
  const Tag<T> d;
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr T kSmallest = kSingle ? -126 : -1022;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  constexpr int kFraction = 9;  // what is left of rounding down
  Vec<T> r;
  if constexpr (kSingle)
    r = Vec<T>{_mm512_reduce_ps(x.raw, kFraction)};
  else
    r = Vec<T>{_mm512_reduce_pd(x.raw, kFraction)};
#else
  const auto k = hn::Floor(x);
  const auto r = hn::Sub(x, k);
#endif
  Vec<T> p;
  if constexpr (kSingle) {
    p = hn::Set(d, T(2.1612916572463909741e-4));
    for (const double c :
         {1.2467845905837623091e-3, 9.6754516351156426617e-3, 5.5485280578767663321e-2, 2.4022930556274536352e-1, 6.9314704444236054171e-1})
      p = hn::MulAdd(p, r, hn::Set(d, T(c)));
  } else {
    p = hn::Set(d, T(6.2634670311524986219e-10));
    for (const double c :
         {6.5595288459525092886e-9, 1.0253212545571002572e-7, 1.3208367274744744092e-6, 1.5253175056694234007e-5, 1.5403512309571383816e-4,
          1.3333558629568591173e-3, 9.6181290995507597166e-3, 5.5504108665602257275e-2, 2.4022650695906330182e-1, 6.9314718055994592843e-1})
      p = hn::MulAdd(p, r, hn::Set(d, T(c)));
  }
  p = hn::MulAdd(p, r, hn::Set(d, T(1)));
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86  // scaling rounds the exponent down by itself
  if constexpr (kSingle)
    return Vec<T>{_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(kSmallest), _CMP_NLT_UQ), p.raw, x.raw)};
  else
    return Vec<T>{_mm512_maskz_scalef_pd(_mm512_cmp_pd_mask(x.raw, _mm512_set1_pd(kSmallest), _CMP_NLT_UQ), p.raw, x.raw)};
#else
  constexpr int kBits = kSingle ? 23 : 52, kBias = kSingle ? 127 : 1023;
  const hn::RebindToSigned<Tag<T>> di;
  const auto power = hn::BitCast(d, hn::ShiftLeft<kBits>(hn::Add(hn::ConvertTo(di, k), hn::Set(di, kBias))));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kSmallest)), hn::Mul(p, power));
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
  /// All of it within so many tiles.
  void hurry(int64_t tiles) {
    int64_t lines = 0;
    for (int b = 0; b < count_; ++b) lines += blocks_[b].rows * (blocks_[b].bytes / kLine + 1);
    lines_ = std::max(lines_, lines / tiles + 1);
  }
  HWY_INLINE void step() {
    if (block_ == count_) return;
    for (int64_t lines = 0; lines < lines_ && block_ < count_;) {
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
  static constexpr int64_t kLine = 64;
  Block blocks_[kMost];
  int count_ = 0, block_ = 0;
  int64_t done_ = 0, lines_ = 24;  ///< lines_: a tile
};

/// One term of a sum of products: a left operand with element (i, k) at left[i row + k step] and a right operand in panels, of which
/// `panel_size` elements apart one follows the other.
template <class U>
struct Term {
  const U* left;
  int64_t row, step;
  const U* panels;
  int64_t panel_size, depth;
};

/// sums += rows i .. i+R-1 and W vectors of a panel of the term.
template <class T, int R, int W, class U>
HWY_INLINE void AddTerm(const Term<U>& term, int64_t i, int64_t panel, Vec<T> (&sums)[R][W]) {
  const U* HWY_RESTRICT left = term.left + i * term.row;
  const U* HWY_RESTRICT right = term.panels + panel * term.panel_size;
  const int64_t row = term.row, step = term.step, depth = term.depth;
  Vec<T> s[R][W];  // in registers: for all that the compiler knows, `sums` could be what is read
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) s[r][w] = sums[r][w];
  for (int64_t k = 0; k < depth; ++k) {
    Vec<T> b[W];
    for (int w = 0; w < W; ++w) b[w] = LoadOperand(right + k * kPanel<T> + w * kLanes<T>);
    for (int r = 0; r < R; ++r) {
      const Vec<T> a = Broadcast(left[r * row + k * step]);
      for (int w = 0; w < W; ++w) s[r][w] = MultiplyAdd<U>(a, b[w], s[r][w]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) sums[r][w] = s[r][w];
}

/// Rows i .. i+R-1 and W vectors from column j of the sum of the terms, left to `end(i, j, sums)`. `panel` is the index of column j's panel.
template <class T, int R, int W, class End, class... U>
HWY_INLINE void Tile(int64_t i, int64_t j, int64_t panel, const End& end, Ahead& ahead, const Term<U>&... terms) {
  ahead.step();
  Vec<T> sums[R][W];
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) sums[r][w] = hn::Zero(Tag<T>());
  (AddTerm<T>(terms, i, panel, sums), ...);
  // Unknown to the compiler, which would otherwise keep the addresses of all rows at hand, at the price of a sum that goes through memory in every
  // step.
  asm("" : "+r"(i));
  end(i, j, sums);
}

/// f.operator()<R>(i) for groups of R rows that cover `rows` rows.
template <class F>
HWY_INLINE void InGroups(int64_t rows, const F& f) {
  int64_t i = 0;
  auto run = [&]<int R>() HWY_ATTR {
    for (; i + R <= rows; i += R) f.template operator()<R>(i);
  };
  run.template operator()<kTileRows>();
  if constexpr (kTileRows > 4) run.template operator()<4>();
  run.template operator()<2>();
  run.template operator()<1>();
}

/// All rows of a panel. A function of its own, so that nothing competes with its sums for registers.
template <class T, int W, class End, class... U>
HWY_NOINLINE void TileRows(int64_t rows, int64_t j, int64_t panel, const End& end, Ahead& ahead, const Term<U>&... terms) {
  InGroups(rows, [&]<int R>(int64_t i) HWY_ATTR { Tile<T, R, W>(i, j, panel, end, ahead, terms...); });
}

/// The sum of the terms, tile by tile, for `rows` rows and at least `width` columns: whole vectors.
template <class T, class End, class... U>
HWY_INLINE void Product(int64_t rows, int64_t width, const End& end, Ahead& ahead, const Term<U>&... terms) {
  for (int64_t j = 0, panel = 0; j < width; j += kPanel<T>, ++panel) {
    if (width - j > kLanes<T>)
      TileRows<T, 2>(rows, j, panel, end, ahead, terms...);
    else
      TileRows<T, 1>(rows, j, panel, end, ahead, terms...);
  }
}

/// The sums of a block, `width` columns of it, and the terms beside: left to `end`.
template <int W, class End, class... U>
HWY_INLINE void EndOfBlock(int64_t i, int64_t j, int64_t panel, int64_t rows, const float* block, const End& end, const Term<U>&... terms) {
  InGroups(rows, [&]<int R>(int64_t r0) HWY_ATTR {
    Vec<float> sums[R][W];
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w) sums[r][w] = Load(block + (r0 + r) * kPanel<float> + w * kLanes<float>);
    (AddTerm<float>(terms, i + r0, panel, sums), ...);
    end(i + r0, j, sums);
  });
}

/// The same where a product comes in AMX tiles: in blocks of 2 x 2 tiles, straight to and from the end's place where it has one, which must have room
/// for whole tiles. Other terms are added afterwards.
template <class T, class End, class... U>
HWY_INLINE void Product(int64_t rows, int64_t width, const End& end, Ahead& ahead, const Term<TiledBf16Pair>& product, const Term<U>&... terms) {
  HWY_ALIGN float block[2 * kTileSide * kPanel<float>];
  for (int64_t j = 0, panel = 0; j < width; j += kPanel<float>, ++panel)
    for (int64_t i = 0; i < rows; i += 2 * kTileSide) {
      ahead.step();
      auto multiply = [&](Place<const float> from, Place<float> to) HWY_ATTR {
        in_tiles(rows - i, width - j, [&]<int R, int W>() HWY_ATTR {
          TileBlock<R, W>(product.left + i * product.row, product.row, product.panels + panel * product.panel_size, product.depth, from, to);
        });
      };
      if constexpr (requires { end.place(i, j); } && sizeof...(terms) == 0) {
        multiply(end.start(i, j), end.place(i, j));
      } else {
        multiply({}, {block, kPanel<float>});
        const int64_t count = std::min(rows - i, 2 * kTileSide);
        if (width - j > kLanes<float>)
          EndOfBlock<2>(i, j, panel, count, block, end, terms...);
        else
          EndOfBlock<1>(i, j, panel, count, block, end, terms...);
      }
    }
}

// What becomes of a tile: ends for Product.

/// c = sums
template <class T>
struct StoreTile {
  T* c;
  int64_t row;
  Place<T> place(int64_t i, int64_t j) const { return {c + i * row + j, row}; }
  Place<const T> start(int64_t, int64_t) const { return {}; }
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
  Place<T> place(int64_t i, int64_t j) const { return {c + i * row + j, row}; }
  Place<const T> start(int64_t i, int64_t j) const { return {c + i * row + j, row}; }
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

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
