// Sizes of a launch of resident Sinkhorn attention, what its kernels are given, and how operands move: rows of global memory, panels in
// shared memory, results.
#pragma once
#include <limits>

#include "cuda/attention.h"
#include "cuda/fragment.h"

namespace sinkgrad::cuda::resident {

constexpr int kStrip = 16;      // rows, or columns, that a warp multiplies at a time
constexpr int kWide = 128;      // the widest head
constexpr int kChunk = 64;      // columns of a left operand, or of a result, that are in registers at a time
constexpr int kMaxBlocks = 16;  // of a cluster
constexpr int kSlots = 3;       // values that every warp posts for the cluster: see ResidentBlock::post()

/// Registers of f64 hold half as much.
template <class F>
constexpr int kMaxWarps = sizeof(typename F::Value) == 8 ? 8 : 12;
template <class F>
constexpr int kMaxLines = sizeof(typename F::Value) == 8 ? 32 : 64;  // of a panel

/// Calls f.operator()<F>() with the format that a dtype and a precision ask for.
template <class T, class Body>
auto with_format(Precision precision, Body&& body) {
  if constexpr (sizeof(T) == 8) {
    return body.template operator()<Full<double>>();
  } else {
    if (precision == Precision::tf32) return body.template operator()<Tf32>();
    if (precision == Precision::bf16) return body.template operator()<Bf16>();
    return body.template operator()<Full<float>>();
  }
}

__device__ __host__ constexpr int round_up(int x, int to) { return (x + to - 1) / to * to; }

/// Sizes of one launch. Cells count pairs of columns.
struct ResidentShape {
  int blocks;       // of a cluster
  int rows;         // of a block, a multiple of kStrip
  int cells;        // of a row of the matrix, a multiple of 8
  int lines;        // of a panel, a multiple of 16
  int panel_cells;  // of a line
  int warps;
  int groups, share;                // of threads that sum columns, and the rows of each
  int column_vectors, row_vectors;  // what the kernel keeps besides the matrix
  size_t shared_bytes;

  Launch launch(int64_t matrices) const {
    return {.blocks = matrices * blocks, .threads = warps * kWarp, .shared_bytes = shared_bytes, .cluster = blocks};
  }
  __device__ __host__ int row_strips() const { return rows / kStrip; }
  __device__ __host__ int column_strips() const { return cells / 8; }
};

/// Which matrix a block has and where it begins. In shared memory, because registers that hold it throughout would be spilled.
struct MatrixPlace {
  int index, batch, head;
  int taken;           // half-steps
  int64_t q, k, v, o;  // first elements
  MatrixPlace() = default;
  __device__ MatrixPlace(const AttentionShape& s, int i, int half_steps)
      : index(i),
        batch(i / static_cast<int>(s.heads)),
        head(i % static_cast<int>(s.heads)),
        taken(half_steps),
        q(s.q_at(batch, head, 0)),
        k(s.k_at(batch, head, 0)),
        v(s.v_at(batch, head, 0)),
        o(s.o_at(batch, head, 0)) {}
};

/// Threads that sum columns: `width` of them side by side, in as many groups as there are threads for; each group takes some rows.
__device__ __host__ inline int column_width(int cells, int threads) { return round_up(cells, kWarp) < threads ? round_up(cells, kWarp) : threads; }

template <class F>
ResidentShape resident_shape(int64_t n, int64_t m, int panel_cells, int blocks, int lines, int column_vectors, int row_vectors, bool by_columns) {
  using T = typename F::Value;
  ResidentShape s{.blocks = blocks, .lines = lines, .panel_cells = panel_cells, .column_vectors = column_vectors, .row_vectors = row_vectors};
  s.rows = round_up(static_cast<int>((n + blocks - 1) / blocks), kStrip);
  s.cells = round_up(static_cast<int>(m + 1) / 2, 8);
  const int columns = (s.column_strips() + blocks - 1) / blocks;
  const int strips = by_columns && columns > s.row_strips() ? columns : s.row_strips();
  const int turns = (strips + kMaxWarps<F> - 1) / kMaxWarps<F>;
  s.warps = (strips + turns - 1) / turns;
  const int groups = s.warps * kWarp / column_width(s.cells, s.warps * kWarp);
  s.share = (s.rows + groups - 1) / groups;
  s.groups = (s.rows + s.share - 1) / s.share;
  size_t bytes = shared_bytes<typename F::Cell>(int64_t{s.rows} * tile_stride(s.cells));
  bytes += shared_bytes<typename F::Cell>(int64_t{2} * lines * tile_stride(panel_cells));
  if (kRoundsCells<F>) bytes += shared_bytes<Pair<T>>(int64_t{lines} * panel_cells);
  bytes += shared_bytes<Pair<T>>(int64_t{s.cells} * (column_vectors + 2 + (s.groups > 1 ? s.groups : 0)));
  bytes += shared_bytes<MatrixPlace>(1);
  bytes += shared_bytes<T>(int64_t{s.rows} * row_vectors) + shared_bytes<T>(int64_t{2} * kSlots * s.warps + 2 * s.warps);
  s.shared_bytes = bytes;
  return s;
}

/// Cells that the panels of a call need: all of a row of Q, K, dO and V for products along them, kChunk columns for those over them.
inline int panel_cells_of(int64_t along, int64_t over) {
  const int width = static_cast<int>(over < kChunk ? over : kChunk), cells = round_up((width + 1) / 2, 16),
            all = round_up(static_cast<int>(along + 1) / 2, 8);
  return cells > all ? cells : all;
}

/// The launch for a matrix, or blocks = 0 when it does not fit; takes(launch) says whether the device can run it. Of the panels that fit, the largest
/// that still leaves room for a second block on the multiprocessor, where any would.
template <class F, class Takes>
ResidentShape fit_resident(const AttentionShape& s, AttentionVariant variant, int panel_cells, int column_vectors, int row_vectors, bool by_columns,
                           Takes takes) {
  const bool fits = s.n > 0 && s.m > 0 && s.d > 0 && s.e > 0 && s.d <= kWide && s.e <= kWide && s.n < (1 << 20) && s.m < (1 << 20) &&
                    s.heads <= std::numeric_limits<int>::max() / kWide;
  if (fits)
    for (int blocks = variant == AttentionVariant::cluster ? 2 : 1; blocks <= (variant == AttentionVariant::block ? 1 : kMaxBlocks); blocks *= 2) {
      auto shape = [&](int lines) { return resident_shape<F>(s.n, s.m, panel_cells, blocks, lines, column_vectors, row_vectors, by_columns); };
      auto count = [&](int lines) { return shared_limit() / shape(lines).shared_bytes; };
      if (count(16) == 0) continue;
      const size_t wanted = count(16) < 2 ? 1 : 2;
      int lines = kMaxLines<F>;
      while (count(lines) < wanted) lines /= 2;
      const int useful = round_up(static_cast<int>(s.n > s.m ? s.n : s.m), 16);
      if (const ResidentShape chosen = shape(lines < useful ? lines : useful); takes(chosen.launch(1))) return chosen;
    }
  return {};
}

/// A matrix per batch entry and head in global memory. `aligned`: rows begin at multiples of 16 bytes.
template <class T>
struct Matrices {
  /// Elements from a row to the next, and from a head to the next.
  Matrices(const View& v, int64_t to_row, int64_t to_head)
      : x(span<const T>(v)),
        row(static_cast<int>(to_row)),
        aligned(reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && to_row * sizeof(T) % 16 == 0 && to_head * sizeof(T) % 16 == 0) {}
  __device__ Matrices(const Span<T>& scratch, int to_row) : x(scratch), row(to_row), aligned(true) {}
  Span<const T> x;
  int row;
  bool aligned;
};

template <class T>
__device__ Span<const Pair<T>> pairs_of(const Span<const T>& x) {
  return {reinterpret_cast<const Pair<T>*>(x.data), x.count / 2};
}

/// Rows of one of them; zero outside.
template <class T>
struct Rows {
  Span<const T> x;
  int stride = 0, count = 0, width = 0;
  bool aligned = false;
  Rows() = default;
  __device__ Rows(const Matrices<T>& m, int64_t at, int lines, int columns)
      : x(m.x.part(at, m.x.count - at)), stride(m.row), count(lines), width(columns), aligned(m.aligned) {}
  /// At most kChunk columns of it.
  __device__ Rows columns(int first) const {
    Rows r = *this;
    r.x = x.part(first, x.count - first);
    r.width = width - first < kChunk ? width - first : kChunk;
    return r;
  }
  __device__ bool holds(int line, int cell) const { return line < count && 2 * cell < width; }
  /// One of them; nothing of it is there when it lies outside.
  __device__ Rows row(int line) const {
    Rows r = *this;
    const bool inside = line < count;
    if (const int64_t at = int64_t{line} * stride; inside) r.x = x.part(at, x.count - at);
    r.width = inside ? width : 0;
    return r;
  }
  /// A cell of the first row.
  __device__ Pair<T> operator()(int cell) const {
    Pair<T> v{};
    if (2 * cell >= width) return v;
    if (aligned) return pairs_of(x)[cell];
    v.x[0] = x[2 * cell];
    if (2 * cell + 1 < width) v.x[1] = x[2 * cell + 1];
    return v;
  }
};

/// What a panel shows of global memory: lines of `a` and, from cell `split` on, of `b`; zero up to `cells`.
template <class T>
struct PanelSource {
  Rows<T> a, b;
  int split = 0, cells = 0;
  PanelSource() = default;
  /// For products along and over lines.
  __device__ explicit PanelSource(const Rows<T>& rows) : a(rows), split(round_up((rows.width + 1) / 2, 16)), cells(split) {}
  /// For products along only.
  __device__ PanelSource(const Rows<T>& rows, const Rows<T>& more)
      : a(rows), b(more), split(round_up((rows.width + 1) / 2, 8)), cells(split + round_up((more.width + 1) / 2, 8)) {}
};

/// Two panels in shared memory: while one is computed with, the next is on its way.
template <class F>
class Panels {
 public:
  using T = typename F::Value;
  using Cell = typename F::Cell;
  __device__ Panels(SharedMemory& memory, const ResidentShape& s)
      : cells_(memory.take<Cell>(2 * s.lines * tile_stride(s.panel_cells))), lines_(s.lines), stride_(tile_stride(s.panel_cells)) {
    if constexpr (kRoundsCells<F>) raw_ = memory.take<Pair<T>>(s.lines * s.panel_cells);
  }

  /// Starts to load the first panel for the stream() that follows.
  __device__ void prefetch(const PanelSource<T>& source) {
    request(source, 0);
    pending_ = true;
  }
  /// Forgets it.
  __device__ void discard() {
    if (!pending_) return;
    copy_async_wait<0>();
    block_sync();
    pending_ = false;
  }
  /// compute(first line, panel) for every panel.
  template <class Compute>
  __device__ void stream(const PanelSource<T>& source, Compute compute) {
#pragma unroll 1
    for (int first = pending_ ? 0 : -lines_; first < source.a.count; first += lines_) {
      if (first >= 0) {
        arrive(source, first);
        block_sync();  // the panel is there, and everyone is done with the one before, which the next request overwrites
      }
      if (first + lines_ < source.a.count) request(source, first + lines_);
      if (first >= 0) compute(first, half(turn_ ^ 1));
    }
    pending_ = false;
  }

  __device__ int lines() const { return lines_; }

 private:
  static constexpr int kVector = 16 / sizeof(Pair<T>);  // cells
  static constexpr int kTeam = 8;                       // threads of a line: 128 bytes at a time

  /// body(line, cell, cell of the panel, whether the vector there is copied as it is) for this thread's vectors.
  template <class Body>
  __device__ void each_vector(const Rows<T>& x, int first, int at, int cells, Body body) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int line = thread / kTeam; line < lines_; line += static_cast<int>(blockDim.x) / kTeam)
#pragma unroll 1
      for (int cell = thread % kTeam * kVector; cell < cells; cell += kTeam * kVector)
        body(line, cell, at + cell, x.aligned && x.holds(first + line, cell));
  }
  __device__ void request(const PanelSource<T>& s, int first) {
    request(s, s.a, first, 0, s.split);
    if (s.cells > s.split) request(s, s.b, first, s.split, s.cells - s.split);
    copy_async_commit();
  }
  __device__ void request(const PanelSource<T>& s, const Rows<T>& x, int first, int at, int cells) const {
    const Tile<F> panel = half(turn_);
    each_vector(x, first, at, cells, [&](int line, int cell, int to, bool copied) {
      const int64_t from = int64_t{first + line} * (x.stride / 2) + cell;
      if constexpr (kRoundsCells<F>) {
        if (copied) copy_async(raw_, line * s.cells + to, pairs_of(x.x), from);
      } else if (copied) {
        copy_async(panel.cells, line * stride_ + to, pairs_of(x.x), from);
      } else {
        const Rows<T> row = x.row(first + line);
        for (int k = 0; k < kVector; ++k) {
          const Pair<T> v = row(cell + k);
          panel.put(line, to + k, F::cell(v.x[0], v.x[1]));
        }
      }
    });
  }
  /// Waits for the panel that was requested last; rounds it. The next request takes the other half.
  __device__ void arrive(const PanelSource<T>& s, int first) {
    copy_async_wait<0>();
    if constexpr (kRoundsCells<F>) {
      round(half(turn_), s, s.a, first, 0, s.split);
      if (s.cells > s.split) round(half(turn_), s, s.b, first, s.split, s.cells - s.split);
    }
    turn_ ^= 1;
  }
  __device__ void round(const Tile<F>& panel, const PanelSource<T>& s, const Rows<T>& x, int first, int at, int cells) const {
    each_vector(x, first, at, cells, [&](int line, int cell, int to, bool copied) {
      const Rows<T> row = x.row(first + line);
      for (int k = 0; k < kVector; ++k) {
        const Pair<T> v = copied ? static_cast<Pair<T>>(raw_[line * s.cells + to + k]) : row(cell + k);
        panel.put(line, to + k, F::cell(v.x[0], v.x[1]));
      }
    });
  }
  __device__ Tile<F> half(int i) const { return {cells_.part(i * lines_ * stride_, lines_ * stride_), stride_}; }

  Shared<Cell> cells_;
  Shared<Pair<T>> raw_;  // as copied, read again by the thread that copied it
  int lines_, stride_, turn_ = 0;
  bool pending_ = false;
};

/// Results in global memory, four neighbouring columns at a time.
template <class T>
struct Output {
  GradSpan<T> x;
  bool aligned = false;
  Output() = default;
  Output(const GradSpan<T>& to, int64_t row, int64_t head)
      : x(to), aligned(reinterpret_cast<uintptr_t>(to.data.data) % 16 == 0 && row * sizeof(T) % 16 == 0 && head * sizeof(T) % 16 == 0) {}
  explicit __device__ operator bool() const { return static_cast<bool>(x); }
  __device__ void put(int64_t at, const T (&v)[4], int count) const {
    if (aligned && count >= 4) {
      constexpr int size = Vector<T>::kSize;
#pragma unroll
      for (int k = 0; k < 4; k += size) {
        Vector<T> w = x.add ? load_vector(x.data, at + k) : Vector<T>{};
#pragma unroll
        for (int i = 0; i < size; ++i) w.x[i] += v[k + i];
        store_vector(x.data, at + k, w);
      }
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (k < count) x.put(at + k, v[k]);
    }
  }
};

/// What the kernel of the forward pass is given.
template <class F>
struct ForwardCall {
  using T = typename F::Value;
  AttentionShape s;
  AttentionMasksView masks;
  ResidentShape shape;
  Matrices<T> q, k, v;
  Output<T> out;
  Span<T> row, column, stats, row_max, plan;  // what is kept; plan may be absent
};

/// What the kernel of the backward pass is given.
template <class F>
struct BackwardCall {
  using T = typename F::Value;
  AttentionShape s;
  AttentionMasksView masks;
  ResidentShape shape;
  Matrices<T> q, k, v, out, d_out;
  Span<const T> row, column, stats, row_max;  // what the forward kept
  Output<T> dq, dk, dv;
  Span<T> row_factors, column_factors;  // A (matrices, n, factors) and B (matrices, m, factors)
  int factors;
};

}  // namespace sinkgrad::cuda::resident
