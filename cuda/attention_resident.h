// One matrix (batch entry and head) of Sinkhorn attention on chip: what the forward and the backward of the resident variants share.
// The blocks of a cluster (one or several) own 16 k rows of the n x m matrix each, as cells in shared memory, a warp per strip of 16 rows.
// Rows of Q and dO that belong to one warp go from global memory into fragments; K, V, dO and Q, which all warps read, pass through two
// panels in shared memory. Column sums add warps, then blocks, in a fixed order.
#pragma once
#include "cuda/attention_resident_memory.h"
#include "cuda/reduce.h"

namespace sinkgrad::cuda::resident {

/// 1 / x of a count. A division would bring a call for denormal numbers, around which registers are spilled.
template <class T>
__device__ T inverse_count(T x) {
  const T r = rsqrt(x) * rsqrt(x);
  return r * (2 - x * r);
}

__device__ inline float exponential(float x) { return exp2_fast(x * 1.4426950408889634f); }
__device__ inline double exponential(double x) { return exp(x); }

/// Over the four lanes that hold a row of accumulators, in each of them.
template <class Op, class T>
__device__ T row_reduce(T v, Op op) {
  return warp_reduce(v, op, 4);
}

/// Whether any of those lanes says so.
__device__ inline bool row_any(bool p) { return (warp_ballot(p) >> (lane_index() & ~3) & 15u) != 0; }

/// A block's share of a matrix, and the products and sums that both directions are made of.
template <class F>
struct ResidentBlock {
  using T = typename F::Value;
  using Cell = typename F::Cell;
  static constexpr int kSteps = kChunk / F::kDepth;

  const ResidentShape& shape;
  Tile<F> tile;
  Panels<F> panels;
  Shared<Pair<T>> partial, sums;
  Shared<T> board;
  int turn = 0;  // of the two halves of sums and board: peers may still read the other one

  __device__ ResidentBlock(SharedMemory& memory, const ResidentShape& s)
      : shape(s), tile{memory.take<Cell>(s.rows * tile_stride(s.cells)), tile_stride(s.cells)}, panels(memory, s) {}
  /// After the kernel's own arrays.
  __device__ void take(SharedMemory& memory) {
    partial = memory.take<Pair<T>>(shape.groups > 1 ? shape.groups * shape.cells : 0);
    sums = memory.take<Pair<T>>(2 * shape.cells);
    board = memory.take<T>(2 * kSlots * shape.warps + 2 * shape.warps);
  }

  __device__ int first_row() const { return cluster_rank() * shape.rows; }
  /// Of half h of a strip that this lane holds in accumulators.
  __device__ int row_of(int strip, int h) const { return strip * kStrip + lane_group() + 8 * h; }
  /// body(cell) for the cells of a row that this thread owns.
  template <class Body>
  __device__ void own_cells(Body body) const {
#pragma unroll 1
    for (int cell = static_cast<int>(threadIdx.x); cell < shape.cells; cell += static_cast<int>(blockDim.x)) body(cell);
  }
  /// body(strip, whether there is one) for the strips of this warp; all warps take as many turns.
  template <class Body>
  __device__ void own_strips(int begin, int end, Body body) const {
#pragma unroll 1
    for (int strip = begin + warp_index(); strip - warp_index() < end; strip += shape.warps) body(strip, strip < end);
  }

  /// finish(cell, c) for every 8 lines of `right`: accumulators c of the products of a strip's rows with them, the first of them in
  /// column 2 cell. Rows of `left` and of `more` meet the parts a and b of the lines.
  template <class Finish>
  __device__ void multiply_along(int strip, bool active, const Rows<T>& left, const Rows<T>& more, const PanelSource<T>& right, Finish finish) {
    const int steps = round_up((left.width + 1) / 2, kStepCells<F>) / kStepCells<F>;
    const int more_steps = round_up((more.width + 1) / 2, kStepCells<F>) / kStepCells<F>;
    const bool one_chunk = steps <= kSteps && more_steps == 0;
    Left<F> a[kSteps];
    auto load = [&](const Rows<T>& rows, int first_step, int count) {
      const Rows<T> upper = rows.row(first_row() + row_of(strip, 0)), lower = rows.row(first_row() + row_of(strip, 1));
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        if (s < count)
          a[s] = left_along<F>([&](int h, int cell) {
            const int at = (first_step + s) * kStepCells<F> + cell;
            const Pair<T> v = h == 0 ? upper(at) : lower(at);
            return F::cell(v.x[0], v.x[1]);
          });
    };
    if (active && one_chunk) load(left, 0, steps);
    auto compute = [&](int first_line, const Tile<F>& panel) {
      if (!active) return;
      for (int line = 0; line < panels.lines() && first_line + line < right.a.count; line += 32) {
        T c[2][2][4] = {};
        auto multiply = [&](int cell, int count) {
#pragma unroll
          for (int s = 0; s < kSteps; ++s)
            if (s < count)
#pragma unroll
              for (int q = 0; q < 2; ++q) {
                const int at = line + 16 * q < panels.lines() ? line + 16 * q : line;
                const Right<F> b[2] = {right_along(panel, at, cell + s * kStepCells<F>), right_along(panel, at + 8, cell + s * kStepCells<F>)};
                F::multiply(c[q], a[s], b);
              }
        };
        for (int s = 0; s < steps; s += kSteps) {
          if (!one_chunk) load(left, s, steps - s);
          multiply(s * kStepCells<F>, steps - s);
        }
        for (int s = 0; s < more_steps; s += kSteps) {
          load(more, s, more_steps - s);
          multiply(right.split + s * kStepCells<F>, more_steps - s);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (const int first = line + 8 * i; first < panels.lines() && (first_line + first) / 2 < shape.cells)
            finish((first_line + first) / 2 + lane_in_group(), c[i / 2][i % 2]);
      }
    };
    panels.stream(right, compute);
  }

  /// c (16 x kChunk) += left (16 x lines) right (lines x width), the lines of `right` up to `limit`. left(line) gives the operand of a step.
  template <class LoadLeft>
  __device__ void multiply_over(T (&c)[4][2][4], bool active, const PanelSource<T>& right, int limit, LoadLeft left) {
    auto compute = [&](int first_line, const Tile<F>& panel) {
      if (!active) return;
      const int lines = panels.lines() < limit - first_line ? panels.lines() : limit - first_line;
#pragma unroll 1
      for (int line = 0; line < lines; line += F::kDepth) {
        const Left<F> a = left(first_line + line);
#pragma unroll
        for (int q = 0; q < 4; ++q)
          if (16 * q < right.a.width) {
            Right<F> b[2];
            right_over(panel, line, 8 * q, b[0], b[1]);
            F::multiply(c[q], a, b);
          }
      }
    };
    panels.stream(right, compute);
  }
  /// body(h, column, v) for the accumulators of multiply_over(): four neighbouring columns from `column` on, of half h.
  template <class Body>
  __device__ void each_output(const T (&c)[4][2][4], int width, Body body) const {
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (const int column = 16 * q + 4 * lane_in_group(); column < width) {
          const T v[4] = {c[q][0][2 * h], c[q][1][2 * h], c[q][0][2 * h + 1], c[q][1][2 * h + 1]};
          body(h, column, v);
        }
  }

  /// then(row, sum_j tile_ij w_j) for the rows of this warp, in all four lanes that hold a row.
  template <class Then>
  __device__ void multiply_vector(const Shared<Pair<T>>& w, Then then) const {
    for (int strip = warp_index(); strip < shape.row_strips(); strip += shape.warps) {
      T sum[2] = {};
#pragma unroll 4
      for (int cell = lane_in_group(); cell < shape.cells; cell += 4) {
        const Pair<T> y = w[cell];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Pair<T> x = tile.values(row_of(strip, h), cell);
          sum[h] += x.x[0] * y.x[0];
          sum[h] += x.x[1] * y.x[1];
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) then(row_of(strip, h), row_reduce(sum[h], Sum{}));
    }
  }

  /// Combines term(row, cell) over the rows of the cluster, and extra(cell) of its blocks: see total(). The weights in the terms may have
  /// been written just before.
  template <class Op, class Term, class Extra>
  __device__ void reduce_columns(Op op, Term term, Extra extra) {
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    const int width = column_width(shape.cells, threads), group = thread / width;
    const int begin = group * shape.share, end = begin + shape.share < shape.rows ? begin + shape.share : shape.rows;
    auto over_rows = [&](int cell) {
      Pair<T> v = term(begin, cell);
#pragma unroll 4
      for (int row = begin + 1; row < end; ++row) {
        const Pair<T> t = term(row, cell);
        v = {{op(v.x[0], t.x[0]), op(v.x[1], t.x[1])}};
      }
      return v;
    };
    block_sync();
    turn ^= 1;
    const Shared<Pair<T>> mine = sums.part(turn * shape.cells, shape.cells), parts = shape.groups > 1 ? partial : mine;
#pragma unroll 1
    for (int cell = thread % width; cell < shape.cells && group < shape.groups; cell += width) parts[group * shape.cells + cell] = over_rows(cell);
    if (shape.groups > 1) block_sync();
    own_cells([&](int cell) {
      Pair<T> v = extra(cell);
#pragma unroll 1
      for (int k = 0; k < shape.groups; ++k) {
        const Pair<T> t = parts[k * shape.cells + cell];
        v = {{op(v.x[0], t.x[0]), op(v.x[1], t.x[1])}};
      }
      mine[cell] = v;
    });
    if (shape.blocks > 1) cluster_sync();
  }
  /// Of an own cell, after reduce_columns().
  template <class Op>
  __device__ Pair<T> total(int cell, Op op) const {
    if (shape.blocks == 1) return sums[turn * shape.cells + cell];
    Pair<T> v = cluster_peer(sums, 0)[turn * shape.cells + cell];
    for (int rank = 1; rank < shape.blocks; ++rank) {
      const Pair<T> t = cluster_peer(sums, rank)[turn * shape.cells + cell];
      v = {{op(v.x[0], t.x[0]), op(v.x[1], t.x[1])}};
    }
    return v;
  }

  /// Shows the cluster what op makes of v over this warp; for collect() after the next reduce_columns() or exchange().
  template <class Op>
  __device__ void post(int slot, T v, Op op) const {
    v = warp_reduce(v, op);
    if (lane_index() == 0) board[((turn ^ 1) * kSlots + slot) * shape.warps + warp_index()] = v;
  }
  /// What op, of numbers >= 0, makes of the posts of all warps of `blocks` blocks, from this one or the first of the cluster on.
  template <class Op>
  __device__ T collect(int slot, Op op, bool of_cluster = true) const {
    T v = 0;
    for (int k = lane_index(); k < (of_cluster ? shape.blocks : 1) * shape.warps; k += kWarp) {
      const int at = (turn * kSlots + slot) * shape.warps + k % shape.warps;
      v = op(v, shape.blocks > 1 && of_cluster ? static_cast<T>(cluster_peer(board, k / shape.warps)[at]) : static_cast<T>(board[at]));
    }
    return warp_reduce(v, op);
  }
  __device__ void exchange() {
    turn ^= 1;
    sync();
  }
  /// A barrier of all that read this block's matrix.
  __device__ void sync() const {
    if (shape.blocks > 1)
      cluster_sync();
    else
      block_sync();
  }
  /// The largest of v and of w over the block, in every thread.
  __device__ void block_max(T& v, T& w) const {
    const Shared<T> scratch = board.part(2 * kSlots * shape.warps, 2 * shape.warps);
    v = warp_max(v);
    w = warp_max(w);
    if (lane_index() == 0) {
      scratch[warp_index()] = v;
      scratch[shape.warps + warp_index()] = w;
    }
    block_sync();
    for (int k = 0; k < shape.warps; ++k) {
      v = Max{}(v, static_cast<T>(scratch[k]));
      w = Max{}(w, static_cast<T>(scratch[shape.warps + k]));
    }
  }
};

}  // namespace sinkgrad::cuda::resident
