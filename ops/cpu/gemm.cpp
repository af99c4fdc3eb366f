// Products; large ones in full precision go to libraries (library_gemm.h). C is computed by blocks of k: op(B) is packed in panels (tile-inl.h),
// a transposed A in groups of rows, an A in bf16 row by row, each once for all threads, which then share tiles of C. Inside a tile of C a slice
// of one panel stays in the first-level cache while all rows of the tile pass it.
#include "ops/cpu/gemm.h"

#include <cstring>

#include "core/parallel.h"
#include "ops/cpu/library_gemm.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "ops/cpu/pack-inl.h"

#ifndef SINKGRAD_GEMM_PRODUCT
#define SINKGRAD_GEMM_PRODUCT
namespace sinkgrad::cpu {

template <class T>
struct GemmProduct {
  bool ta, tb;
  int64_t m, n, k;
  T alpha;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  T beta;
  T* c;
  int64_t ldc;
  const T* bias;
};

/// The steps of a product for one instruction set and type U of operands. A block is k0 .. k0 + depth - 1 of the inner index.
template <class T, class U>
struct GemmSteps {
  int64_t panel_columns, group_rows;
  int64_t (*elements)(int64_t depth);
  void (*pack_panels)(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t first_panel, int64_t count, U* panels);
  /// An A that is transposed or to be rounded.
  void (*pack_groups)(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t first_group, int64_t count, U* groups);
  /// Adds the block's part to rows begin .. end-1 of C, a multiple of group_rows apart, in panels first_panel .. last_panel-1. `panels` and
  /// `groups` hold the whole block; groups are null where A is read in place. Rows next_begin .. next_end-1 of A and C are fetched meanwhile.
  void (*multiply)(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t begin, int64_t end, int64_t first_panel, int64_t last_panel,
                   const U* panels, const U* groups, int64_t next_begin, int64_t next_end);
};

}  // namespace sinkgrad::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {

/// Rows of a tile: with the two vectors of a panel as many sums as the registers hold.
#if HWY_TARGET <= HWY_AVX3
template <class U>
constexpr int kGroup = kTiled<U> ? 2 * kTileSide : 12;
#else
template <class U>
constexpr int kGroup = 6;
#endif
/// Depth of the slice of a panel that stays in the first-level cache.
constexpr int64_t kSlice = 256;

/// c = sums + bias + beta c, or c += sums; `columns` bounds what is touched.
template <class T>
struct GemmTile {
  const T* bias;
  T beta;
  T* c;
  int64_t row, columns;
  template <int R, int W>
  HWY_INLINE void operator()(int64_t i, int64_t j, const Vec<T> (&sums)[R][W]) const {
    const Vec<T> factor = Set(beta);
    for (int w = 0; w < W; ++w) {
      const int64_t at = j + w * kLanes<T>;
      T* to = c + i * row + at;
      if (at + kLanes<T> <= columns) {
        const Vec<T> start = bias ? Load(bias + at) : hn::Zero(Tag<T>());
        for (int r = 0; r < R; ++r, to += row) {
          const Vec<T> value = hn::Add(sums[r][w], start);
          Store(beta == T(0) ? value : hn::MulAdd(factor, Load(to), value), to);
        }
      } else {
        HWY_ALIGN T spill[kLanes<T>];
        for (int r = 0; r < R; ++r, to += row) {
          Store(sums[r][w], spill);
          for (int64_t l = 0; at + l < columns; ++l) {
            const T value = spill[l] + (bias ? bias[at + l] : T(0));
            to[l] = beta == T(0) ? value : beta * to[l] + value;
          }
        }
      }
    }
  }
};

template <class T, class U>
void PackPanels(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t first_panel, int64_t count, U* panels) {
  const int64_t j = first_panel * kPanel<T>, width = std::min(p.n - j, count * kPanel<T>);
  U* to = panels + first_panel * elements<U>(depth) * kPanel<T>;
  if (p.tb)
    PackTransposed(depth, width, p.b + j * p.ldb + k0, p.ldb, p.alpha, to);
  else
    PackRows<U, T>(depth, width, p.b + k0 * p.ldb + j, p.ldb, p.alpha, nullptr, to);
}

/// Rows of a transposed A, beside one another for each k. A few k at a time, so that both what is read and what is written come in lines.
template <class T, class U>
void PackTransposedGroups(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t first_group, int64_t count, U* groups) {
  constexpr int64_t kAtOnce = 16, kRows = kGroup<U>;
  const int64_t length = elements<U>(depth);
  for (int64_t some = 0; some < length; some += kAtOnce)
    for (int64_t g = first_group; g < first_group + count; ++g)
      for (int64_t k = some; k < std::min(some + kAtOnce, length); ++k) {
        const T* from = p.a + (k0 + k * kTogether<U>)*p.lda + g * kRows;
        U* to = groups + (g * length + k) * kRows;
        const int64_t rows = std::min(kRows, p.m - g * kRows);
        if constexpr (kPairs<U>)
          RoundTwoRows(from, k * 2 + 1 < depth ? from + p.lda : nullptr, rows, to);
        else if (rows == kRows)
          std::memcpy(to, from, kRows * sizeof(T));  // a few moves, where copy_n calls a function
        else
          std::copy_n(from, rows, to);
      }
}

template <class T, class U>
void PackGroups(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t first_group, int64_t count, U* groups) {
  const int64_t length = elements<U>(depth), begin = first_group * kGroup<U>, end = std::min(p.m, (first_group + count) * kGroup<U>);
  if constexpr (kTiled<U>)
    if (p.ta) return RoundTransposedTiles(p.a + k0 * p.lda + begin, p.lda, depth, end - begin, length, groups + begin * length);
  if (p.ta) return PackTransposedGroups(p, k0, depth, first_group, count, groups);
  if constexpr (kPairs<U>)
    for (int64_t i = begin; i < end; ++i) RoundRow(p.a + i * p.lda + k0, depth, i, length, groups);
}

/// A where tiles read it: a block's element (i, k) at at[i row + k step].
template <class U, class T>
HWY_INLINE Left<U> LeftOf(const GemmProduct<T>& p, int64_t k0, int64_t length, const U* groups, int64_t i) {
  if constexpr (!kPairs<U>)
    if (!groups) return p.ta ? Left<U>{p.a + k0 * p.lda, 1, p.lda} : Left<U>{p.a + k0, p.lda, 1};
  constexpr int64_t kRows = kGroup<U>;
  if (p.ta) return {groups + i / kRows * length * kRows + i % kRows - i, 1, kRows};  // tiles add i rows: the group holds them from its first on
  return {groups, length, 1};
}

template <class T, class U>
void Multiply(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t begin, int64_t end, int64_t first_panel, int64_t last_panel,
              const U* panels, const U* groups, int64_t next_begin, int64_t next_end) {
  Ahead ahead;
  if (next_begin < next_end) {
    const int64_t j = first_panel * kPanel<T>, columns = std::min(p.n, last_panel * kPanel<T>) - j;
    if (!groups && !p.ta) ahead.want(p.a + next_begin * p.lda + k0, next_end - next_begin, p.lda, depth);
    ahead.want(p.c + next_begin * p.ldc + j, next_end - next_begin, p.ldc, columns);
  }
  const int64_t length = elements<U>(depth);
  for (int64_t s = 0; s == 0 || s < length; s += kSlice) {  // once where k is 0
    const bool first = k0 + s == 0;
    if (const int64_t next = s + kSlice; p.ta && !groups && next < length) {  // columns, which the processor would not fetch by itself
      ahead = {};
      ahead.want(p.a + (k0 + next) * p.lda + begin, std::min(kSlice, length - next), p.lda, end - begin);
      ahead.hurry((last_panel - first_panel) * ((end - begin + kGroup<U> - 1) / kGroup<U>));
    }
    const GemmTile<T> end_of_tile{first ? p.bias : nullptr, first ? p.beta : T(1), p.c, p.ldc, p.n};
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      const int64_t j = panel * kPanel<T>;
      auto rows = [&]<int R>(int64_t i) HWY_ATTR {
        const Left<U> left = LeftOf(p, k0, length, groups, i);
        const Term<U> term{left.at + s * left.step, left.row, left.step, panels + s * kPanel<T>, length * kPanel<T>, std::min(kSlice, length - s)};
        if (p.n - j > kLanes<T>)
          Tile<T, R, 2>(i, j, panel, end_of_tile, ahead, term);
        else
          Tile<T, R, 1>(i, j, panel, end_of_tile, ahead, term);
      };
      int64_t i = begin;
      for (; i + kGroup<U> <= end; i += kGroup<U>) rows.template operator()<kGroup<U>>(i);
      for (; i + 4 <= end; i += 4) rows.template operator()<4>(i);
      for (; i + 2 <= end; i += 2) rows.template operator()<2>(i);
      if (i < end) rows.template operator()<1>(i);
    }
  }
}

/// The same in AMX tiles: sums begin with the bias, or what C holds, and end in C; at its edges and for other beta they go through a block beside it.
template <class T, class U>
void MultiplyTiled(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t begin, int64_t end, int64_t first_panel, int64_t last_panel,
                   const U* panels, const U* groups, int64_t next_begin, int64_t next_end) {
  constexpr int64_t kRows = kGroup<U>;
  const TileScope<U> tiles;
  Ahead ahead;
  if (next_begin < next_end) {
    const int64_t j = first_panel * kPanel<T>;
    ahead.want(p.c + next_begin * p.ldc + j, next_end - next_begin, p.ldc, std::min(p.n, last_panel * kPanel<T>) - j);
  }
  HWY_ALIGN T block[kRows * kPanel<T>];
  const int64_t length = elements<U>(depth);
  for (int64_t s = 0; s == 0 || s < length; s += kSlice) {
    const bool first = k0 + s == 0;
    const T beta = first ? p.beta : T(1);
    const T* bias = first ? p.bias : nullptr;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      const int64_t j = panel * kPanel<T>;
      const U* right = panels + (panel * length + s) * kPanel<T>;
      for (int64_t i = begin; i < end; i += kRows) {
        ahead.step();
        auto multiply = [&](Place<const float> from, Place<T> to) HWY_ATTR {
          in_tiles(end - i, p.n - j, [&]<int R, int W>() HWY_ATTR {
            TileBlock<R, W>(groups + i * length + s * kTileSide, length, right, std::min(kSlice, length - s), from, to);
          });
        };
        const bool whole = i + kRows <= end && j + kPanel<T> <= p.n;
        T* c = p.c + i * p.ldc + j;
        if (whole && beta == T(0)) {
          multiply({bias ? bias + j : nullptr, 0}, {c, p.ldc});
        } else if (whole && beta == T(1) && !bias) {
          multiply({c, p.ldc}, {c, p.ldc});
        } else {
          multiply({}, {block, kPanel<T>});
          const int64_t rows = std::min(kRows, end - i);
          const GemmTile<T> end_of_tile{bias, beta, p.c, p.ldc, p.n};
          if (p.n - j > kLanes<T>)
            EndOfBlock<2>(i, j, panel, rows, block, end_of_tile);
          else
            EndOfBlock<1>(i, j, panel, rows, block, end_of_tile);
        }
      }
    }
  }
}

template <class T, class U>
GemmSteps<T, U> Steps() {
  if constexpr (kTiled<U>)
    return {kPanel<T>, kGroup<U>, elements<U>, PackPanels<T, U>, PackGroups<T, U>, MultiplyTiled<T, U>};
  else
    return {kPanel<T>, kGroup<U>, elements<U>, PackPanels<T, U>, PackGroups<T, U>, Multiply<T, U>};
}
GemmSteps<float, float> StepsF32() { return Steps<float, float>(); }
GemmSteps<double, double> StepsF64() { return Steps<double, double>(); }
GemmSteps<float, Bf16Pair> StepsBf16() { return Steps<float, Bf16Pair>(); }
/// Empty where the instruction set has none.
GemmSteps<float, NativeBf16Pair> StepsNativeBf16() {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return Steps<float, NativeBf16Pair>();
#else
  return {};
#endif
}
GemmSteps<float, TiledBf16Pair> StepsTiledBf16() {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return Steps<float, TiledBf16Pair>();
#else
  return {};
#endif
}

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinkgrad::cpu {
HWY_EXPORT(StepsF32);
HWY_EXPORT(StepsF64);
HWY_EXPORT(StepsBf16);
HWY_EXPORT(StepsNativeBf16);
HWY_EXPORT(StepsTiledBf16);

namespace {

constexpr int64_t kBlock = 1024;         // of k: what is packed at a time, at least
constexpr int64_t kPacked = 1 << 18;     // elements of op(B) that are packed at a time where k allows
constexpr int64_t kGroups = 16;          // of rows in a tile of C
constexpr int64_t kWork = 4 << 20;       // multiply-adds that a tile of C is worth
constexpr int64_t kNarrow = 256;         // rows of a transposed A up to which it is read in place
constexpr int64_t kLeastWork = 1 << 18;  // multiply-adds that are worth a thread

template <class T, class U>
const GemmSteps<T, U>& steps() {
  static const GemmSteps<T, U> steps = [] {
    if constexpr (std::is_same_v<U, double>)
      return HWY_DYNAMIC_DISPATCH(StepsF64)();
    else if constexpr (std::is_same_v<U, float>)
      return HWY_DYNAMIC_DISPATCH(StepsF32)();
    else if constexpr (std::is_same_v<U, Bf16Pair>)
      return HWY_DYNAMIC_DISPATCH(StepsBf16)();
    else if constexpr (std::is_same_v<U, NativeBf16Pair>)
      return HWY_DYNAMIC_DISPATCH(StepsNativeBf16)();
    else
      return HWY_DYNAMIC_DISPATCH(StepsTiledBf16)();
  }();
  return steps;
}

int64_t quotient_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

/// `length` pieces in `count` parts of about the same size.
struct Parts {
  int64_t length, count;
  int64_t begin(int64_t part) const { return part * length / count; }
  /// The share of the time that threads would wait for the one with most pieces.
  double idle(int64_t workers) const { return static_cast<double>(quotient_up(length, workers) * workers - length) / static_cast<double>(length); }
  void make_multiple(int64_t workers) { count = std::min(length, quotient_up(count, workers) * workers); }
};

template <class U, class T>
void multiply(const GemmProduct<T>& p) {
  const GemmSteps<T, U>& step = steps<T, U>();
  const int64_t panels = quotient_up(p.n, step.panel_columns), groups = quotient_up(p.m, step.group_rows),
                block = std::max(kBlock, kPacked / (panels * step.panel_columns) / kBlock * kBlock), deepest = std::min(p.k, block),
                length = step.elements(deepest);
  ScratchScope scratch;
  U* packed_b = scratch.take<U>(panels * length * step.panel_columns);
  U* packed_a = (p.ta && p.lda > kNarrow) || !std::is_same_v<T, U> ? scratch.take<U>(groups * length * step.group_rows) : nullptr;
  // No element's sum depends on how C is cut, so threads may.
  const int64_t workers = std::clamp<int64_t>(p.m * p.n * p.k / kLeastWork, 1, threads_of_loop());
  Parts rows{groups, quotient_up(groups, kGroups)};
  const int64_t columns_worth =
      quotient_up(kWork, quotient_up(groups, rows.count) * step.group_rows * std::max<int64_t>(1, deepest) * step.panel_columns);
  Parts columns{panels, quotient_up(panels, std::max<int64_t>(4, columns_worth))};
  if (rows.count * columns.count % workers != 0) (columns.idle(workers) < rows.idle(workers) ? columns : rows).make_multiple(workers);
  for (int64_t k0 = 0; k0 == 0 || k0 < p.k; k0 += block) {
    const int64_t depth = std::min(block, p.k - k0);
    // Some panels and some groups of rows per chunk.
    const int64_t some_panels = grain_for(depth * step.panel_columns), some_groups = std::max<int64_t>(4, grain_for(depth * step.group_rows)),
                  panel_chunks = quotient_up(panels, some_panels), group_chunks = packed_a ? quotient_up(groups, some_groups) : 0;
    parallel_chunks(panel_chunks + group_chunks, [&](int64_t chunk) {
      if (const int64_t first = chunk * some_panels; chunk < panel_chunks)
        return step.pack_panels(p, k0, depth, first, std::min(some_panels, panels - first), packed_b);
      const int64_t first = (chunk - panel_chunks) * some_groups;
      step.pack_groups(p, k0, depth, first, std::min(some_groups, groups - first), packed_a);
    });
    parallel_chunks(rows.count * columns.count, [&](int64_t tile) {
      const int64_t row = tile / columns.count, column = tile % columns.count, next = (tile + 1) / columns.count;
      auto first_row = [&](int64_t part) { return std::min(p.m, rows.begin(std::min(part, rows.count)) * step.group_rows); };
      step.multiply(p, k0, depth, first_row(row), first_row(row + 1), columns.begin(column), columns.begin(column + 1), packed_b, packed_a,
                    first_row(next), next == row ? first_row(next) : first_row(next + 1));
    });
  }
}

}  // namespace

template <class T>
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc,
          Precision precision, const T* bias) {
  if (m == 0 || n == 0) return;
  const GemmProduct<T> p{ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias};
  if constexpr (std::is_same_v<T, float>)
    if (precision == Precision::bf16)
      return has_bf16_tiles() ? multiply<TiledBf16Pair>(p) : has_bf16_instructions() ? multiply<NativeBf16Pair>(p) : multiply<Bf16Pair>(p);
  if (m * n * k >= kLibraryWork) return library_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias);
  multiply<T>(p);
}

template void gemm<float>(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float, float*, int64_t,
                          Precision, const float*);
template void gemm<double>(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*, int64_t, double, double*, int64_t,
                           Precision, const double*);

}  // namespace sinkgrad::cpu
#endif
