// Stripes of the scores: what a block, or a cluster that shares the streamed side, computes at a time. Rows of one side lie in shared
// memory for good, tiles of the other side stream past them; as many score tiles as fit are kept for a second look, the others
// are computed twice. "Rows" are queries and "columns" keys in the kernels that own queries, the reverse in those that own keys.
#pragma once
#include <type_traits>

#include "cuda/attention.h"
#include "cuda/fragment.h"
#include "cuda/reduce.h"

namespace sinkgrad::cuda::streaming {

constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;
constexpr int kStripeThreads = 128;   ///< at most; fewer where the rows of a stripe are too long for shared memory
constexpr int64_t kPaddedRows = 128;  ///< packed operands and vectors are padded to a multiple of it

// What depends on the format F of the operands. Registers of f64 hold half as much; where a product is one instruction, each warp
// takes twice as many rows, because shared memory could not feed it otherwise.
template <class F>
constexpr bool kDouble = sizeof(typename F::Value) == 8;
template <class F>
constexpr int kTile = kDouble<F> ? 32 : 64;  ///< rows streamed at a time, columns of a score tile
template <class F>
constexpr int kPanelCells = kDouble<F> ? 32 : 64;  ///< of a streamed row, at a time
template <class F>
constexpr int kRowTiles = 2;  ///< times 16 rows of a warp
template <>
inline constexpr int kRowTiles<Full<float>> = 1;
template <>
inline constexpr int kRowTiles<Full<double>> = 1;

/// x as an operand of a product holds it.
template <class F>
__device__ typename F::Value rounded(typename F::Value x) {
  if constexpr (std::is_same_v<F, Bf16>) return F::values(F::cell(x, 0)).x[0];
  if constexpr (std::is_same_v<F, Tf32>) return bits_to_float(round_tf32(x));
  return x;
}

/// One operand of every matrix: (matrices, rows, width) cells of which `used` matter; zeros beyond the real rows and columns.
template <class F>
struct Packed {
  Span<typename F::Cell> cells;
  int64_t rows = 0;
  int width = 0, used = 0;
  __device__ __host__ int panels() const { return (used + kPanelCells<F> - 1) / kPanelCells<F>; }
  /// Cells of a panel.
  __device__ __host__ int panel(int i) const {
    const int left = used - i * kPanelCells<F>;
    return left < kPanelCells<F> ? left : kPanelCells<F>;
  }
};

/// Which blocks do what: block = ((matrix, part), chunk of output columns), rank in the cluster. A part is some stripes, one after the other.
struct StripeGrid {
  int64_t stripes = 0, parts = 0;  ///< per matrix
  int64_t per_part = 1;            ///< stripes
  int rows = 0;                    ///< of a stripe: 16 per warp times the kernel's row tiles
  int chunks = 1, cluster = 1;     ///< of output columns; of blocks
  int tiles = 0, share = 0;        ///< streamed in all; by each block of a cluster
  int kept = 0;                    ///< score tiles that a block keeps on chip
  int space = 0;                   ///< reals for them
};

/// A block's share of the work.
struct StripeBlock {
  StripeBlock() = default;
  explicit __device__ StripeBlock(const StripeGrid& g) {
    int64_t b = blockIdx.x;
    rank = static_cast<int>(b % g.cluster);
    b /= g.cluster;
    chunk = static_cast<int>(b % g.chunks);
    b /= g.chunks;
    part = b % g.parts;
    matrix = b / g.parts;
    first_stripe = part * g.per_part;
    last_stripe = first_stripe + g.per_part < g.stripes ? first_stripe + g.per_part : g.stripes;
    first_tile = rank * g.share;
    const int left = g.tiles - first_tile;
    tiles = left < g.share ? (left > 0 ? left : 0) : g.share;
    kept = tiles < g.kept ? tiles : g.kept;
  }
  int64_t matrix, part;
  int64_t first_stripe, last_stripe;  ///< the last one is not included
  int chunk, rank;
  int first_tile, tiles, kept;  ///< of this block
};

/// It in shared memory: registers that hold it throughout would be spilled.
class SharedStripeBlock {
 public:
  static constexpr size_t kBytes = shared_bytes<StripeBlock>(1);
  __device__ SharedStripeBlock(SharedMemory& memory, const StripeGrid& g) : block_(memory.take<StripeBlock>(1)) {
    if (threadIdx.x == 0) block_[0] = StripeBlock(g);
    block_sync();
  }
  __device__ StripeBlock operator()() const { return block_[0]; }

 private:
  Shared<StripeBlock> block_;
};

/// Between stripes, and for a cluster at the end: shared memory is written again, and it must outlive its readers in other blocks.
__device__ inline void finish_stripe(const StripeGrid& grid, bool more) {
  if (grid.cluster > 1)
    cluster_sync();
  else if (more)
    block_sync();
}

/// c (16 M x 8 Q) += a b^T: rows of a from `row`, cells of a from `cell`, all rows of b, `cells` of each.
template <class F, int M, int Q>
__device__ void multiply_rows(typename F::Value (&c)[M][Q][4], const Tile<F>& a, int row, int cell, const Tile<F>& b, int cells) {
  row += lane_group();
  for (int x = 0; x < cells; x += kStepCells<F>) {
    Right<F> right[Q];
#pragma unroll
    for (int q = 0; q < Q; ++q) right[q] = right_along(b, 8 * q, x);
#pragma unroll
    for (int i = 0; i < M; ++i) F::multiply(c[i], left_along<F>([&](int h, int y) { return a(row + 16 * i + 8 * h, cell + x + y); }), right);
  }
}

/// c (16 M x 32 O) += p b: p (16 M x 8 Q) in accumulators, b with 8 Q rows. Columns of c: see each_output().
template <class F, int M, int Q, int O>
__device__ void multiply_columns(typename F::Value (&c)[M][O][4][4], const typename F::Value (&p)[M][Q][4], const Tile<F>& b) {
  constexpr int depth = F::kDepth / 8;
#pragma unroll
  for (int q = 0; q < Q; q += depth) {
    Left<F> left[M];
#pragma unroll
    for (int i = 0; i < M; ++i) {
      typename F::Value x[depth][4];
#pragma unroll
      for (int k = 0; k < depth * 4; ++k) x[k / 4][k % 4] = p[i][q + k / 4][k % 4];
      left[i] = left_of<F>(x);
    }
#pragma unroll
    for (int o = 0; o < O; ++o) {
      Right<F> right[4];
      right_over(b, 8 * q, 16 * o, right[0], right[1]);
      right_over(b, 8 * q, 16 * o + 8, right[2], right[3]);
#pragma unroll
      for (int i = 0; i < M; ++i) F::multiply(c[i][o], left[i], right);
    }
  }
}

template <class Real, int M, int N>
__device__ void clear(Real (&c)[M][N][4]) {
#pragma unroll
  for (int k = 0; k < M * N * 4; ++k) c[k / 4 / N][k / 4 % N][k % 4] = 0;
}
template <class Real, int M, int O>
__device__ void clear(Real (&c)[M][O][4][4]) {
#pragma unroll
  for (int i = 0; i < M; ++i) clear(c[i]);
}

template <class F>
__device__ void copy_rows(const Tile<F>& to, const Packed<F>& from, int64_t matrix, int64_t first_row, int rows, int first_cell, int cells) {
  constexpr int vector = 16 / sizeof(typename F::Cell);
  const Span<const typename F::Cell> cells_of = from.cells;
  for (int r = static_cast<int>(threadIdx.x) / 8; r < rows; r += static_cast<int>(blockDim.x) / 8)  // 8 threads to a row: 128 bytes at a time
    for (int x = static_cast<int>(threadIdx.x) % 8 * vector; x < cells; x += 8 * vector)
      copy_async(to.cells, r * to.stride + x, cells_of, (matrix * from.rows + first_row + r) * from.width + first_cell + x);
}

/// Tiles on their way through shared memory, each with some vectors over its rows: two slots, or three where the tile before
/// the present one is still needed. issue(item, slot) starts the copies of an item.
template <class F>
class TileRing {
 public:
  static constexpr size_t bytes(int slots, int stride, int vectors) {
    return shared_bytes<typename F::Cell>(slots * kTile<F> * stride) + shared_bytes<typename F::Value>(slots * kTile<F> * vectors);
  }
  __device__ TileRing(SharedMemory& memory, int slots, int stride, int vectors)
      : cells_(memory.take<typename F::Cell>(slots * kTile<F> * stride)),
        vectors_(memory.take<typename F::Value>(slots * kTile<F> * vectors)),
        slots_(slots),
        stride_(stride),
        count_(vectors) {}
  __device__ Tile<F> rows(int slot) const { return {cells_.part(slot * kTile<F> * stride_, kTile<F> * stride_), stride_}; }
  /// Element i of vector v in a slot.
  __device__ typename F::Value value(int slot, int v, int i) const { return vectors_[(slot * count_ + v) * kTile<F> + i]; }
  __device__ void copy_vector(int slot, int v, const Span<const typename F::Value>& from, int64_t first) const {
    constexpr int vector = 16 / sizeof(typename F::Value);
    if (const int i = static_cast<int>(threadIdx.x) * vector; i < kTile<F>) copy_async(vectors_, (slot * count_ + v) * kTile<F> + i, from, first + i);
  }
  /// Starts with the first of `items`; copies started before belong to it.
  template <class Issue>
  __device__ void start(int items, Issue&& issue) {
    items_ = items;
    next_ = 0;
    if (items > 0) issue(0, 0);
    copy_async_commit();
  }
  /// The slot of the next item, once it has arrived. The slot before it stays as it is if there are three.
  template <class Issue>
  __device__ int next(Issue&& issue) {
    copy_async_wait<0>();
    block_sync();
    const int slot = next_ % slots_;
    if (++next_ < items_) issue(next_, next_ % slots_);
    copy_async_commit();
    return slot;
  }

 private:
  Shared<typename F::Cell> cells_;
  Shared<typename F::Value> vectors_;
  int slots_, stride_, count_, items_ = 0, next_ = 0;
};

/// Score tiles on chip. Every thread finds its own accumulators again, so no barrier is needed.
template <class Real>
struct KeptTiles {
  static constexpr int kVector = 16 / sizeof(Real), kVectors = 4 / kVector;
  Shared<Real> values;
  template <int M, int Q>
  __device__ void store(int tile, const Real (&c)[M][Q][4]) const {
#pragma unroll
    for (int k = 0; k < M * Q * kVectors; ++k) {
      Vector<Real> v;
#pragma unroll
      for (int x = 0; x < kVector; ++x) v.x[x] = c[k / kVectors / Q][k / kVectors % Q][k % kVectors * kVector + x];
      store_vector(values, place<M, Q>(tile, k), v);
    }
  }
  template <int M, int Q>
  __device__ void load(int tile, Real (&c)[M][Q][4]) const {
#pragma unroll
    for (int k = 0; k < M * Q * kVectors; ++k) {
      const Vector<Real> v = load_vector(values, place<M, Q>(tile, k));
#pragma unroll
      for (int x = 0; x < kVector; ++x) c[k / kVectors / Q][k / kVectors % Q][k % kVectors * kVector + x] = v.x[x];
    }
  }

 private:
  template <int M, int Q>
  __device__ int place(int tile, int k) const {
    return ((tile * M * Q * kVectors + k) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVector;
  }
};

/// The first row within the stripe of this warp.
template <int M>
__device__ int warp_row() {
  return warp_index() * 16 * M;
}
/// body(i, h, row in the stripe) for every row of which this lane has accumulators c[i][.][2h + .].
template <int M, class Body>
__device__ void each_row(Body body) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) body(i, h, warp_row<M>() + 16 * i + 8 * h + lane_group());
}
/// body(q, x, column in the tile) for every column of which this lane has accumulators c[.][q][2h + x].
template <int Q, class Body>
__device__ void each_column(Body body) {
#pragma unroll
  for (int q = 0; q < Q; ++q)
#pragma unroll
    for (int x = 0; x < 2; ++x) body(q, x, 8 * q + 2 * lane_in_group() + x);
}

/// Adds the lanes that hold the same row, in a fixed order.
template <class Real>
__device__ Real sum_of_quad(Real v) {
  v += warp_shuffle_xor(v, 1);
  return v + warp_shuffle_xor(v, 2);
}

/// body(row in the stripe, column, value) for every element of an output of multiply_columns() that this lane holds.
template <class Real, int M, int O, class Body>
__device__ void each_output(const Real (&c)[M][O][4][4], Body body) {
  each_row<M>([&](int i, int h, int r) {
#pragma unroll
    for (int k = 0; k < 8 * O; ++k)  // four neighbouring columns after the other
      body(r, k / 4 * 16 + 4 * lane_in_group() + k % 4, c[i][k / 8][k / 4 % 2 * 2 + k % 2][2 * h + k / 2 % 2]);
  });
}

/// An online sum of powers of two: `sum` counts in units of 2^max. Starts as that of no elements.
template <class Real>
struct PowerSum {
  Real max = -infinity<Real>(), sum = 0;
  /// Adds 2^c[q][2h + x] for all q and x.
  template <int Q>
  __device__ void add_powers(const Real (&c)[Q][4], int h) {
    Real top = max;
#pragma unroll
    for (int k = 0; k < 2 * Q; ++k) top = maximum<Real>(c[k / 2][2 * h + k % 2], top);
    const Real shift = top == -infinity<Real>() ? Real(0) : top;
    Real s = 0;
#pragma unroll
    for (int k = 0; k < 2 * Q; ++k) s += exp2_fast(c[k / 2][2 * h + k % 2] - shift);
    sum = sum * exp2_fast(max - shift) + s;
    max = top;
  }
  /// *this, then other.
  __device__ void merge(const PowerSum& other) {
    const Real top = maximum<Real>(max, other.max), shift = top == -infinity<Real>() ? Real(0) : top;
    sum = sum * exp2_fast(max - shift) + other.sum * exp2_fast(other.max - shift);
    max = top;
  }
  /// Merges with the lane `mask` away, the lower lane first: the same bits in both.
  __device__ void merge_lanes(int mask) {
    PowerSum other{warp_shuffle_xor(max, mask), warp_shuffle_xor(sum, mask)};
    if (lane_index() & mask) {
      other.merge(*this);
      *this = other;
    } else {
      merge(other);
    }
  }
};

/// Completes sums over rows of which each lane of a quad, and each block of a cluster, has a part. `shares`: two reals per row.
/// In a cluster this is a barrier, and `shares` is read by the other blocks until the next one.
template <int M, class Real>
__device__ void complete_rows(PowerSum<Real> (&total)[M][2], const StripeGrid& grid, const Shared<Real>& shares) {
  each_row<M>([&](int i, int h, int r) {
    PowerSum<Real>& t = total[i][h];
    t.merge_lanes(1);
    t.merge_lanes(2);
    if (grid.cluster > 1 && lane_in_group() == 0) {
      shares[r] = t.max;
      shares[grid.rows + r] = t.sum;
    }
  });
  if (grid.cluster == 1) return;
  cluster_sync();
  each_row<M>([&](int i, int h, int r) {
    total[i][h] = {};
    for (int rank = 0; rank < grid.cluster; ++rank) {
      const Shared<Real> peer = cluster_peer(shares, rank);
      total[i][h].merge({peer[r], peer[grid.rows + r]});
    }
  });
}

/// A row step: the potential that makes the powers of a row sum to 1. Numbers are rounded as they are kept, so that the backward
/// finds the same ones.
template <class Real>
struct NewRow {
  /// `total` sums 2^(s - max + row + column), or at the first step 2^s; row is -inf for excluded rows.
  __device__ NewRow(const PowerSum<Real>& total, bool first, Real max_before, Real row_before)
      : excluded(row_before == -infinity<Real>() || (first && total.max == -infinity<Real>())) {
    natural_max = excluded || !first ? Real(0) : total.max * Real(kLn2);
    max = first ? natural_max * Real(kLog2E) : max_before;
    const Real exact = (first ? max - total.max : row_before) - log2(total.sum);
    natural_row = excluded ? Real(0) : exact * Real(kLn2);
    row = excluded ? -infinity<Real>() : natural_row * Real(kLog2E);
    weight = excluded ? Real(0) : Real(1) / total.sum;
  }
  bool excluded;
  Real max, row, natural_max, natural_row;
  Real weight;  ///< of powers of the old potential, for all but the first step
};

/// The rows' numbers: working copies in base 2 (matrices, n padded), and those kept in natural units (matrices, steps, n) and (matrices, n).
template <class Real>
struct RowState {
  Span<Real> max, potential;
  Span<Real> kept, kept_max;
  int64_t n = 0, steps = 1;
  __device__ void keep(const NewRow<Real>& f, bool first, int64_t matrix, int64_t step, int64_t i) const {
    if (i >= n || !kept) return;
    kept[(matrix * steps + step) * n + i] = f.natural_row;
    if (first) kept_max[matrix * n + i] = f.natural_max;
  }
};

/// Which of this lane's scores in a tile a mask of pairs hides: bit 4q + 2h + x of word i for c[i][q][2h + x]. To be found before the scores
/// are computed: beside accumulators there are too few registers for its loads. `transposed`: rows are keys.
template <int M, int Q>
class HiddenPairs {
 public:
  __device__ HiddenPairs(const AttentionMasksView& masks, const AttentionShape& s, int64_t batch, int64_t first_row, int64_t first_column,
                         bool transposed) {
    static_assert(4 * Q <= 32);
    if (!masks.pairs) return;
    const int64_t to_column = transposed ? s.m : 1, to_row = transposed ? 1 : s.m, rows = transposed ? s.m : s.n, columns = transposed ? s.n : s.m;
#pragma unroll
    for (int i = 0; i < M; ++i) {
      const int64_t row = first_row + warp_row<M>() + 16 * i + lane_group();
      int64_t column = first_column + 2 * lane_in_group(), at = masks.pair_at(s, batch, 0, 0) + row * to_row + column * to_column;
#pragma unroll 1
      for (int q = 0; q < Q; ++q) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int64_t x = k % 2, y = k / 2 * 8;
          if (row + y < rows && column + x < columns && masks.pairs[at + y * to_row + x * to_column] != 0) bits_[i] |= 1u << (4 * q + k);
        }
        column += 8;
        at += 8 * to_column;
      }
    }
  }
  /// Makes -inf of their scores.
  template <class Real>
  __device__ void hide(Real (&c)[M][Q][4]) const {
#pragma unroll
    for (int i = 0; i < M; ++i)
      if (bits_[i] != 0)
#pragma unroll
        for (int k = 0; k < 4 * Q; ++k)
          if (bits_[i] >> k & 1) c[i][k / 4][k % 4] = -infinity<Real>();
  }

 private:
  unsigned bits_[M] = {};
};

/// Sums over the rows of a stripe: each warp's part of a tile's columns, then one thread per column. Two tiles take turns, so that
/// one barrier per tile is enough.
template <class F>
class ColumnSums {
 public:
  using Real = typename F::Value;
  static constexpr size_t bytes(int threads) { return shared_bytes<Real>(2 * threads / kWarp * kTile<F>); }
  explicit __device__ ColumnSums(SharedMemory& memory) : parts_(memory.take<Real>(2 * warps_per_block() * kTile<F>)) {}
  /// u[2q + x]: this lane's sum over its rows for column 8q + 2t + x. The sums are stored from to[first] on, or added to what is there.
  template <int N>
  __device__ void add(Real (&u)[N], const Span<Real>& to, int64_t first, bool store) {
    // Lanes with the same t exchange halves of their columns, until each has the sums of N / 8 of them.
    exchange<N / 2>(u, 16);
    exchange<N / 4>(u, 8);
    exchange<N / 8>(u, 4);
    const int base = turn_ * warps_per_block() * kTile<F>;
#pragma unroll
    for (int v = 0; v < N / 8; ++v) {
      const int k = lane_group() * (N / 8) + v;
      parts_[base + warp_index() * kTile<F> + k / 2 * 8 + 2 * lane_in_group() + k % 2] = u[v];
    }
    block_sync();
    for (int j = static_cast<int>(threadIdx.x); j < kTile<F>; j += static_cast<int>(blockDim.x)) {
      Real sum = parts_[base + j];
      for (int w = 1; w < warps_per_block(); ++w) sum += parts_[base + w * kTile<F> + j];
      to[first + j] = store ? sum : to[first + j] + sum;
    }
    turn_ ^= 1;
  }

 private:
  /// Goes on with the lower or the upper half of 2 * half columns, as the lane's bit `mask` says.
  template <int half, int N>
  static __device__ void exchange(Real (&u)[N], int mask) {
    const bool upper = (lane_index() & mask) != 0;
#pragma unroll
    for (int v = 0; v < half; ++v) {
      const Real mine = upper ? u[v + half] : u[v], other = upper ? u[v] : u[v + half];
      u[v] = mine + warp_shuffle_xor(other, mask);
    }
  }

  Shared<Real> parts_;
  int turn_ = 0;
};

}  // namespace sinkgrad::cuda::streaming
