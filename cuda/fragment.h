// Tensor-core operands out of tiles of cells. A cell holds two neighbouring columns of a row (two numbers, or two bf16 in a word), so that
// one layout of accumulators and of shared memory serves every format; rows lie an odd multiple of four cells apart (tile_stride), which
// keeps every load below free of bank conflicts in f32 and bf16.
//
// Lane l of a warp, with g = l / 4 and t = l % 4, holds of a product c (16 x 8) += left (16 x kDepth) right (kDepth x 8)
//   c[2h + i]        row g + 8h, column 2t + i
//   left.x[2k + h]   row g + 8h;  right.x[k]   column g        (k: lower or upper half of the depth)
// The depth may run along the cells of both operands ("along"), or over the lines of the right one ("over"). Its order within a step is
// free as long as both operands agree: see left_along(), left_over() and right_over().
#pragma once
#include "cuda/kernel.h"

namespace sinkgrad::cuda {

template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T x[2];
};

template <class F>
struct Left {
  typename F::Element x[4];
};
template <class F>
struct Right {
  typename F::Element x[2];
};

// Formats: how operands are read and multiplied. Value: of accumulators and global memory; Cell: of shared memory; Element: of a fragment.

/// As they are. f32 goes through tf32 units as a high and a low part, the product of the low ones dropped: an error of 2^-21.
template <class T>
struct Full;

template <>
struct Full<float> {
  using Value = float;
  using Cell = Pair<float>;
  using Element = float;
  static constexpr int kDepth = 8;
  static __device__ Cell cell(float x, float y) { return {{x, y}}; }
  static __device__ Pair<float> values(const Cell& c) { return c; }
  template <int N>
  static __device__ void multiply(float (&c)[N][4], const Left<Full>& a, const Right<Full> (&b)[N]) {
    uint32_t high[4], low[4], right_high[N][2], right_low[N][2];
#pragma unroll
    for (int k = 0; k < 4; ++k) split(a.x[k], high[k], low[k]);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int k = 0; k < 2; ++k) split(b[n].x[k], right_high[n][k], right_low[n][k]);
        // Small terms first; N independent sums at a time hide the latency of each.
#pragma unroll
    for (int n = 0; n < N; ++n) mma_tf32(c[n], low, right_high[n]);
#pragma unroll
    for (int n = 0; n < N; ++n) mma_tf32(c[n], high, right_low[n]);
#pragma unroll
    for (int n = 0; n < N; ++n) mma_tf32(c[n], high, right_high[n]);
  }

 private:
  /// Rounds to 10 bits of mantissa, ties away from zero; the unit ignores the lower bits of `low`, which costs 2^-21 at most. Simpler than
  /// round_tf32(), which takes care of infinities and NaN: here they are in `low`.
  static __device__ void split(float x, uint32_t& high, uint32_t& low) {
    high = (float_to_bits(x) + 0x1000u) & 0xffffe000u;
    low = float_to_bits(x - bits_to_float(high));
  }
};

template <>
struct Full<double> {
  using Value = double;
  using Cell = Pair<double>;
  using Element = double;
  static constexpr int kDepth = 8;
  static __device__ Cell cell(double x, double y) { return {{x, y}}; }
  static __device__ Pair<double> values(const Cell& c) { return c; }
  template <int N>
  static __device__ void multiply(double (&c)[N][4], const Left<Full>& a, const Right<Full> (&b)[N]) {
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          double half[2] = {c[n][2 * h], c[n][2 * h + 1]};
          mma_f64(half, a.x[2 * k + h], b[n].x[k]);
          c[n][2 * h] = half[0];
          c[n][2 * h + 1] = half[1];
        }
  }
};

/// f32 rounded to 10 bits of mantissa when a fragment is used.
struct Tf32 {
  using Value = float;
  using Cell = Pair<float>;
  using Element = float;
  static constexpr int kDepth = 8;
  static __device__ Cell cell(float x, float y) { return {{x, y}}; }
  static __device__ Pair<float> values(const Cell& c) { return c; }
  template <int N>
  static __device__ void multiply(float (&c)[N][4], const Left<Tf32>& a, const Right<Tf32> (&b)[N]) {
    uint32_t left[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) left[k] = round_tf32(a.x[k]);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint32_t right[2] = {round_tf32(b[n].x[0]), round_tf32(b[n].x[1])};
      mma_tf32(c[n], left, right);
    }
  }
};

/// f32 rounded to 7 bits of mantissa when a cell is written.
struct Bf16 {
  using Value = float;
  using Cell = uint32_t;
  using Element = uint32_t;
  static constexpr int kDepth = 16;
  static __device__ Cell cell(float x, float y) { return pack_bf16(x, y); }
  static __device__ Pair<float> values(Cell c) { return {{bits_to_float(c << 16), bits_to_float(c & 0xffff0000u)}}; }
  template <int N>
  static __device__ void multiply(float (&c)[N][4], const Left<Bf16>& a, const Right<Bf16> (&b)[N]) {
#pragma unroll
    for (int n = 0; n < N; ++n) mma_bf16(c[n], a.x, b[n].x);
  }
};

/// Whether shared memory holds operands as rounded ones, so that they pass through registers on their way in.
template <class F>
constexpr bool kRoundsCells = sizeof(typename F::Cell) != sizeof(Pair<typename F::Value>);
/// Cells that one step of a product takes.
template <class F>
constexpr int kStepCells = F::kDepth / 2;

__device__ __host__ constexpr int tile_stride(int cells) { return (cells + 3) / 8 * 8 + 4; }

/// Rows of cells in shared memory.
template <class F>
struct Tile {
  Shared<typename F::Cell> cells;
  int stride;
  __device__ typename F::Cell operator()(int row, int cell) const { return cells[row * stride + cell]; }
  __device__ Pair<typename F::Value> values(int row, int cell) const { return F::values(cells[row * stride + cell]); }
  __device__ void put(int row, int cell, typename F::Cell c) const { cells[row * stride + cell] = c; }
};

__device__ inline int lane_group() { return lane_index() / 4; }     // g
__device__ inline int lane_in_group() { return lane_index() % 4; }  // t

namespace fragment {
// In products over lines lane t takes lines 2t and 2t + 1 of 8 (of each 8 of 16 in bf16) because a cell along holds just these columns.
// Of even lines alone two would share a bank, so lanes 2 and 3 take their odd line first.
template <class F>
__device__ bool odd_line_first() {
  return F::kDepth == 8 && lane_in_group() >= 2;
}
__device__ inline uint32_t lower_halves(uint32_t x, uint32_t y) { return (x & 0xffffu) | y << 16; }
__device__ inline uint32_t upper_halves(uint32_t x, uint32_t y) { return x >> 16 | (y & 0xffff0000u); }
}  // namespace fragment

/// The left operand whose depth runs along cells, for a right one along as well. load(h, c) gives cell c of the step, row g + 8h.
template <class F, class Load>
__device__ Left<F> left_along(Load load) {
  Left<F> a;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (F::kDepth == 16) {
      a.x[h] = load(h, lane_in_group());
      a.x[2 + h] = load(h, lane_in_group() + 4);
    } else {
      const typename F::Cell c = load(h, lane_in_group());
      a.x[h] = c.x[0];
      a.x[2 + h] = c.x[1];
    }
  }
  return a;
}

/// The same operand, for a right one over lines: column k of the left is line k of the right.
template <class F>
__device__ Left<F> order_over(const Left<F>& a) {
  if constexpr (F::kDepth == 16) {
    return a;
  } else {
    const bool swap = fragment::odd_line_first<F>();
    return {{swap ? a.x[2] : a.x[0], swap ? a.x[3] : a.x[1], swap ? a.x[0] : a.x[2], swap ? a.x[1] : a.x[3]}};
  }
}

/// Accumulators of one product (of two, in bf16: 16 columns) as the left operand of the next, for a right one over lines.
template <class F>
__device__ Left<F> left_of(const typename F::Value (&c)[F::kDepth / 8][4]) {
  Left<F> a;
  if constexpr (F::kDepth == 16) {
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h) a.x[2 * k + h] = F::cell(c[k][2 * h], c[k][2 * h + 1]);
    return a;
  } else {
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h) a.x[2 * k + h] = c[0][2 * h + k];
    return order_over<F>(a);
  }
}

/// The transposed left operand: its rows are 16 columns (8 cells from `cell`) of a tile, its depth are lines of the tile, for a right one
/// over lines. Row g + 8h of the product is column 2g + h. load(line, cell) gives a cell.
template <class F, class Load>
__device__ Left<F> left_over(int line, int cell, Load load) {
  Left<F> a;
  const int c = cell + lane_group(), first = line + 2 * lane_in_group();
  if constexpr (F::kDepth == 16) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t even = load(first + 8 * k, c), odd = load(first + 8 * k + 1, c);
      a.x[2 * k] = fragment::lower_halves(even, odd);
      a.x[2 * k + 1] = fragment::upper_halves(even, odd);
    }
  } else {
    const int swap = fragment::odd_line_first<F>();
    const typename F::Cell x = load(first + swap, c), y = load(first + 1 - swap, c);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      a.x[h] = x.x[h];
      a.x[2 + h] = y.x[h];
    }
  }
  return a;
}

/// The right operand along: its columns are 8 lines of a tile, its depth one step from `cell`.
template <class F>
__device__ Right<F> right_along(const Tile<F>& tile, int line, int cell) {
  Right<F> b;
  line += lane_group();
  cell += lane_in_group();
  if constexpr (F::kDepth == 16) {
    b.x[0] = tile(line, cell);
    b.x[1] = tile(line, cell + 4);
  } else {
    const typename F::Cell c = tile(line, cell);
    b.x[0] = c.x[0];
    b.x[1] = c.x[1];
  }
  return b;
}

/// Two right operands over lines: their depth is one step of lines from `line`, their columns are 16 columns from `cell` on, the even ones
/// in b[0], the odd ones in b[1]. So a lane's accumulators are of the columns 4t .. 4t + 3: c[0][2h], c[1][2h], c[0][2h + 1], c[1][2h + 1].
template <class F>
__device__ void right_over(const Tile<F>& tile, int line, int cell, Right<F>& even, Right<F>& odd) {
  const Left<F> both = left_over<F>(line, cell, tile);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    even.x[k] = both.x[2 * k];
    odd.x[k] = both.x[2 * k + 1];
  }
}

}  // namespace sinkgrad::cuda
