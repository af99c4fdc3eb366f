// Operands of products brought into the form that the microkernel takes (tile-inl.h), for one instruction set. T is the type of numbers in
// memory, U that of the operand's elements: T itself, or pairs of bf16 where T is float.
#if defined(SINKGRAD_PACK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SINKGRAD_PACK_INL
#undef SINKGRAD_PACK_INL
#else
#define SINKGRAD_PACK_INL
#endif

#include <algorithm>

#include "core/parallel.h"
#include "ops/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {

/// The element that begins with number k of `depth`, those beyond being 0, which lie `step` apart in `x`, times `factor`.
template <class U, class T>
HWY_INLINE U ElementAt(const T* x, int64_t step, int64_t k, int64_t depth, T factor) {
  if constexpr (kPairs<U>) {
    auto bits = [&](int64_t at) { return at < depth ? bf16_bits(factor * x[at * step]) : 0u; };
    return {bits(k) | bits(k + 1) << 16};
  } else {
    return factor * x[k * step];
  }
}

/// kLanes elements that follow one another from x, times `factor`.
template <class U, class T>
HWY_INLINE Vec<T> ElementsAt(const T* x, Vec<T> factor) {
  if constexpr (kPairs<U>)
    return PairsInOrder<U>(hn::Mul(Load(x), factor), hn::Mul(Load(x + kLanes<T>), factor));
  else
    return hn::Mul(Load(x), factor);
}

/// Packs b (depth, width), rows `row` apart, times `scale` and, where given, times row_scale[k]; columns beyond width are 0.
template <class U, class T>
void PackRows(int64_t depth, int64_t width, const T* b, int64_t row, T scale, const T* row_scale, U* panels) {
  HWY_ALIGN T filled[2][kPanel<T>] = {};  // rows that are narrower than a panel, or missing
  for (int64_t j = 0; j < width; j += kPanel<T>) {
    const int64_t columns = std::min(kPanel<T>, width - j);
    for (int64_t k = 0; k < kTogether<U> * elements<U>(depth); k += kTogether<U>, panels += kPanel<T>) {
      const T* rows[kTogether<U>];
      T factors[kTogether<U>];
      for (int64_t t = 0; t < kTogether<U>; ++t) {
        const bool present = k + t < depth;
        rows[t] = b + (k + t) * row + j;
        factors[t] = row_scale && present ? scale * row_scale[k + t] : scale;
        if (present && columns == kPanel<T>) continue;
        for (int64_t w = 0; w < columns; ++w) filled[t][w] = present ? rows[t][w] : T(0);
        rows[t] = filled[t];
      }
      for (int64_t w = 0; w < kPanel<T>; w += kLanes<T>) {
        const Vec<T> first = hn::Mul(Load(rows[0] + w), Set(factors[0]));
        if constexpr (kPairs<U>)
          StoreOperand(Pairs<U>(first, hn::Mul(Load(rows[1] + w), Set(factors[1]))), panels + w);
        else
          Store(first, panels + w);
      }
    }
  }
}

/// to(k, w) = vector w's lane k, for a square block of kLanes vectors: `vector(w)`.
template <class T, class Vector>
HWY_INLINE void TransposeBlock(const Vector& vector, T* to, [[maybe_unused]] int64_t to_row) {
#if HWY_TARGET == HWY_SCALAR
  Store(vector(0), to);
#else
  const Tag<T> d;
  constexpr int64_t kBlock = 16 / sizeof(T), kBlocks = kLanes<T> / kBlock;
  Vec<T> t[kBlocks][kBlock];  // t[g][q]: in its block b, rows g kBlock .. of column b kBlock + q
  for (int64_t g = 0; g < kBlocks; ++g) {
    Vec<T> r[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) r[i] = vector(g * kBlock + i);
    if constexpr (sizeof(T) == 4) {
      const hn::Repartition<double, Tag<T> > pairs;
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
template <class U, class T>
void PackTransposed(int64_t depth, int64_t width, const T* b, int64_t row, T factor, U* panels) {
  constexpr int64_t kBlock = kLanes<T> * kTogether<U>;
  const int64_t filled = kTogether<U> * elements<U>(depth);
  for (int64_t j = 0; j < width; j += kPanel<T>, panels += elements<U>(depth) * kPanel<T>) {
    int64_t w = 0;
    for (; w + kLanes<T> <= std::min(kPanel<T>, width - j); w += kLanes<T>) {
      const T* from = b + (j + w) * row;
      int64_t k = 0;
      for (; k + kBlock <= depth; k += kBlock)
        TransposeBlock<T>([&](int64_t i) HWY_ATTR { return ElementsAt<U>(from + i * row + k, Set(factor)); },
                          reinterpret_cast<T*>(panels + k / kTogether<U> * kPanel<T> + w), kPanel<T>);
      for (; k < filled; k += kTogether<U>)
        for (int64_t i = 0; i < kLanes<T>; ++i) panels[k / kTogether<U> * kPanel<T> + w + i] = ElementAt<U>(from + i * row, 1, k, depth, factor);
    }
    for (; w < kPanel<T>; ++w) {
      const T* from = b + (j + w < width ? j + w : 0) * row;
      for (int64_t k = 0; k < filled; k += kTogether<U>) panels[k / kTogether<U> * kPanel<T> + w] = ElementAt<U>(from, 1, k, depth, factor);
    }
  }
}

/// A left operand: element (i, k) at at[i row + k step]. Where products come in tiles, 16 rows begin at at[i row], tile after tile of 16 elements in
/// k, the 16 rows of a tile one after the other.
template <class U>
struct Left {
  const U* at;
  int64_t row, step;
};

/// Rows an odd number of cache lines apart do not compete for places in the cache.
template <class T>
constexpr int64_t odd_lines(int64_t width) {
  constexpr int64_t kLine = 64 / sizeof(T);
  const int64_t lines = (width + kLine - 1) / kLine;
  return (lines % 2 == 0 ? lines + 1 : lines) * kLine;
}

/// Rounds row i of `depth` numbers for a left operand whose rows are `length` elements long.
template <class U, class T>
HWY_INLINE void RoundRow(const T* x, int64_t depth, int64_t i, int64_t length, U* to) {
  int64_t k = 0;
  if constexpr (kTiled<U>) {
    to += i / kTileSide * kTileSide * length + i % kTileSide * kTileSide;
    for (; k < depth; k += 2 * kTileSide, to += kTileSide * kTileSide) {
      const bool whole = k + 2 * kTileSide <= depth;
      const Vec<T> low = whole ? Load(x + k) : LoadFirst(x + k, depth - k),
                   high = whole ? Load(x + k + kTileSide) : LoadFirst(x + k + kTileSide, depth - k - kTileSide);
      StoreOperand(PairsInOrder<U>(low, high), to);
    }
  } else {
    to += i * length;
    for (; k + 2 * kLanes<T> <= depth; k += 2 * kLanes<T>) StoreOperand(PairsInOrder<U>(Load(x + k), Load(x + k + kLanes<T>)), to + k / 2);
    for (; k < depth; k += 2) to[k / 2] = ElementAt<U>(x, 1, k, depth, T(1));
  }
}

/// Rounds two rows of `width` numbers that follow one another in the summed index; the second may be null.
template <class U, class T>
HWY_INLINE void RoundTwoRows(const T* x, const T* y, int64_t width, U* to) {
  int64_t i = 0;
  for (; i + kLanes<T> <= width; i += kLanes<T>) StoreOperand(Pairs<U>(Load(x + i), y ? Load(y + i) : hn::Zero(Tag<T>())), to + i);
  for (; i < width; ++i) to[i] = {bf16_bits(x[i]) | (y ? bf16_bits(y[i]) << 16 : 0u)};
}

/// Rounds the transpose of x (depth, rows), its rows `row` apart, into tiles of 16 rows, `length` elements a row.
template <class U, class T>
HWY_INLINE void RoundTransposedTiles(const T* x, int64_t row, int64_t depth, int64_t rows, int64_t length, U* to) {
  for (int64_t i = 0; i < rows; i += kTileSide) {
    U* tile = to + i * length;
    for (int64_t k = 0; k < depth; k += 2 * kTileSide, tile += kTileSide * kTileSide) {
      auto number = [&](int64_t at) HWY_ATTR {
        if (at >= depth) return hn::Zero(Tag<T>());
        return i + kTileSide <= rows ? Load(x + at * row + i) : LoadFirst(x + at * row + i, rows - i);
      };
      TransposeBlock<T>([&](int64_t pair) HWY_ATTR { return Pairs<U>(number(k + 2 * pair), number(k + 2 * pair + 1)); }, reinterpret_cast<T*>(tile),
                        kTileSide);
    }
  }
}

/// x (rows, depth), its rows `row` apart, as a left operand: in place, or rounded into scratch memory.
template <class U, class T>
HWY_INLINE Left<U> LeftOperand(int64_t rows, int64_t depth, const T* x, int64_t row, [[maybe_unused]] ScratchScope& scratch) {
  if constexpr (kPairs<U>) {
    const int64_t length = kTiled<U> ? elements<U>(depth) : odd_lines<U>(elements<U>(depth));
    U* to = scratch.take<U>(whole_tiles<U>(rows) * length);
    for (int64_t i = 0; i < rows; ++i) RoundRow(x + i * row, depth, i, length, to);
    return {to, length, 1};
  } else {
    return {x, row, 1};
  }
}

/// The transpose of x (depth, rows) as a left operand.
template <class U, class T>
HWY_INLINE Left<U> TransposedLeftOperand(int64_t rows, int64_t depth, const T* x, int64_t row, [[maybe_unused]] ScratchScope& scratch) {
  if constexpr (kTiled<U>) {
    const int64_t length = elements<U>(depth);
    U* to = scratch.take<U>(whole_tiles<U>(rows) * length);
    RoundTransposedTiles(x, row, depth, rows, length, to);
    return {to, length, 1};
  } else if constexpr (kPairs<U>) {
    const int64_t length = odd_lines<U>(rows);
    U* to = scratch.take<U>(elements<U>(depth) * length);
    for (int64_t k = 0; k < depth; k += 2) RoundTwoRows(x + k * row, k + 1 < depth ? x + (k + 1) * row : nullptr, rows, to + k / 2 * length);
    return {to, 1, length};
  } else {
    return {x, 1, row};
  }
}

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
