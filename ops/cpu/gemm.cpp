// Small products; large ones go to libraries (library_gemm.h). C is computed by blocks of k: op(B) is packed in panels (tile-inl.h) and a
// transposed A in groups of rows, each once for all threads, which then share tiles of C. Inside a tile of C a slice of one panel stays in the
// first-level cache while all rows of the tile pass it.
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

#include "ops/cpu/tile-inl.h"

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

/// The steps of a product for one instruction set. A block is k0 .. k0 + depth - 1 of the inner index.
template <class T>
struct GemmSteps {
  int64_t panel_columns, group_rows;
  void (*pack_panels)(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t first_panel, int64_t count, T* panels);
  void (*pack_groups)(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t first_group, int64_t count, T* groups);
  /// Adds the block's part to rows begin .. end-1 of C, a multiple of group_rows apart, in panels first_panel .. last_panel-1. `panels` and
  /// `groups` hold the whole block; groups are null where A is read in place. Rows next_begin .. next_end-1 of A and C are fetched meanwhile.
  void (*multiply)(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t begin, int64_t end, int64_t first_panel, int64_t last_panel,
                   const T* panels, const T* groups, int64_t next_begin, int64_t next_end);
};

}  // namespace sinkgrad::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {

/// Rows of a tile: with the two vectors of a panel as many sums as the registers hold.
#if HWY_TARGET <= HWY_AVX3
constexpr int kGroup = 12;
#else
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

template <class T>
void PackPanels(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t first_panel, int64_t count, T* panels) {
  const int64_t j = first_panel * kPanel<T>, width = std::min(p.n - j, count * kPanel<T>);
  T* to = panels + first_panel * depth * kPanel<T>;
  if (p.tb)
    PackTransposed(depth, width, p.b + j * p.ldb + k0, p.ldb, p.alpha, to);
  else
    PackRows<T>(depth, width, p.b + k0 * p.ldb + j, p.ldb, p.alpha, nullptr, to);
}

/// Rows of a transposed A, beside one another for each k. A few k at a time, so that both what is read and what is written come in lines.
template <class T>
void PackGroups(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t first_group, int64_t count, T* groups) {
  constexpr int64_t kAtOnce = 16;
  for (int64_t some = 0; some < depth; some += kAtOnce)
    for (int64_t g = first_group; g < first_group + count; ++g)
      for (int64_t k = some; k < std::min(some + kAtOnce, depth); ++k) {
        const T* from = p.a + (k0 + k) * p.lda + g * kGroup;
        T* to = groups + (g * depth + k) * kGroup;
        if ((g + 1) * kGroup <= p.m)
          std::memcpy(to, from, kGroup * sizeof(T));  // a few moves, where copy_n calls a function
        else
          std::copy_n(from, p.m - g * kGroup, to);
      }
}

template <class T>
void Multiply(const GemmProduct<T>& p, int64_t k0, int64_t depth, int64_t begin, int64_t end, int64_t first_panel, int64_t last_panel,
              const T* panels, const T* groups, int64_t next_begin, int64_t next_end) {
  Ahead ahead;
  if (next_begin < next_end) {
    const int64_t j = first_panel * kPanel<T>, columns = std::min(p.n, last_panel * kPanel<T>) - j;
    if (!groups) ahead.want(p.a + next_begin * p.lda + k0, next_end - next_begin, p.lda, depth);
    ahead.want(p.c + next_begin * p.ldc + j, next_end - next_begin, p.ldc, columns);
  }
  for (int64_t s = 0; s == 0 || s < depth; s += kSlice) {  // once where k is 0
    const int64_t length = std::min(kSlice, depth - s);
    const bool first = k0 + s == 0;
    const GemmTile<T> end_of_tile{first ? p.bias : nullptr, first ? p.beta : T(1), p.c, p.ldc, p.n};
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      const int64_t j = panel * kPanel<T>;
      auto rows = [&]<int R>(int64_t i) HWY_ATTR {
        // Tile adds i rows to the left operand: here it starts at row i already.
        const T* left = groups ? groups + (i / kGroup * depth + s) * kGroup + i % kGroup - i : p.a + k0 + s;
        const Term<T> terms[] = {{left, groups ? 1 : p.lda, groups ? kGroup : 1, panels + s * kPanel<T>, depth * kPanel<T>, length}};
        if (p.n - j > kLanes<T>)
          Tile<R, 2>(terms, i, j, panel, end_of_tile, ahead);
        else
          Tile<R, 1>(terms, i, j, panel, end_of_tile, ahead);
      };
      int64_t i = begin;
      for (; i + kGroup <= end; i += kGroup) rows.template operator()<kGroup>(i);
      for (; i + 4 <= end; i += 4) rows.template operator()<4>(i);
      for (; i + 2 <= end; i += 2) rows.template operator()<2>(i);
      if (i < end) rows.template operator()<1>(i);
    }
  }
}

template <class T>
GemmSteps<T> Steps() {
  return {kPanel<T>, kGroup, PackPanels<T>, PackGroups<T>, Multiply<T>};
}
GemmSteps<float> StepsF32() { return Steps<float>(); }
GemmSteps<double> StepsF64() { return Steps<double>(); }

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinkgrad::cpu {
HWY_EXPORT(StepsF32);
HWY_EXPORT(StepsF64);

namespace {

constexpr int64_t kBlock = 1024;    // of k: what is packed at a time
constexpr int64_t kGroups = 16;     // of rows in a tile of C
constexpr int64_t kWork = 4 << 20;  // multiply-adds that a tile of C is worth

template <class T>
const GemmSteps<T>& steps() {
  static const GemmSteps<T> steps = [] {
    if constexpr (sizeof(T) == 4)
      return HWY_DYNAMIC_DISPATCH(StepsF32)();
    else
      return HWY_DYNAMIC_DISPATCH(StepsF64)();
  }();
  return steps;
}

int64_t quotient_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace

template <class T>
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc,
          const T* bias) {
  if (m == 0 || n == 0) return;
  if (m * n * k >= kLibraryWork) return library_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias);
  const GemmProduct<T> p{ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias};
  const GemmSteps<T>& step = steps<T>();
  const int64_t panels = quotient_up(n, step.panel_columns), groups = quotient_up(m, step.group_rows), deepest = std::min(k, kBlock);
  ScratchScope scratch;
  T* packed_b = scratch.take<T>(panels * deepest * step.panel_columns);
  T* packed_a = ta ? scratch.take<T>(groups * deepest * step.group_rows) : nullptr;
  const int64_t rows = std::min(groups, kGroups) * step.group_rows, row_tiles = quotient_up(m, rows);
  const int64_t columns = std::max<int64_t>(4, quotient_up(kWork, rows * std::max<int64_t>(1, deepest) * step.panel_columns));
  const int64_t column_tiles = quotient_up(panels, columns);
  for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += kBlock) {
    const int64_t depth = std::min(kBlock, k - k0);
    parallel_for(panels, std::max<int64_t>(1, grain_for(depth * step.panel_columns)),
                 [&](int64_t begin, int64_t end) { step.pack_panels(p, k0, depth, begin, end - begin, packed_b); });
    if (ta)
      parallel_for(groups, std::max<int64_t>(16, grain_for(depth * step.group_rows)),
                   [&](int64_t begin, int64_t end) { step.pack_groups(p, k0, depth, begin, end - begin, packed_a); });
    parallel_for(row_tiles * column_tiles, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t i = t / column_tiles * rows, panel = t % column_tiles * columns, next = (t + threads_of_loop()) / column_tiles * rows;
        step.multiply(p, k0, depth, i, std::min(m, i + rows), panel, std::min(panels, panel + columns), packed_b, packed_a, next,
                      next == i ? next : std::min(m, next + rows));
      }
    });
  }
}

template void gemm<float>(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float, float*, int64_t,
                          const float*);
template void gemm<double>(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*, int64_t, double, double*, int64_t,
                           const double*);

}  // namespace sinkgrad::cpu
#endif
