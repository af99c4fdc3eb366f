// Sinkhorn attention with the matrix on chip, forward. With S = scale Q K^T, excluded entries -inf, and t_i = max_j S_ij:
//   R = exp(S - t + F + G) once, F = G = 0;   row step  a = 1 / (R b);   column step  b = rows / (columns R^T a);   P = diag(a) R diag(b)
//   O = diag(a) R (diag(b) V): a last row step needs no pass of its own.     f = F + log a and g = G + log b are kept for the backward.
// Global memory is read once (K and V once per block of a cluster), shared memory once per half-step, an exp per entry in all. Where a and b
// drift apart so far that f32 could not hold their products with R, R is built again with their logarithms in F and G ("anchored").
#include "cuda/attention_resident.h"

namespace sinkgrad::cuda {
namespace resident {
namespace {

constexpr int kColumnVectors = 2, kRowVectors = 3;

/// What R is relative to: nothing new, or potentials under which each row (each column) has the largest entry 1.
enum class Anchor : uint8_t { keep, rows, columns };

template <class F>
struct ForwardMatrix {
  using T = typename F::Value;
  static constexpr bool kTwice = kRoundsCells<F>;  // cells cannot hold scores: they are computed for the maximum, and again
  static constexpr T kLimit = sizeof(T) == 4 ? T(1e30) : T(1e280);

  const ForwardCall<F>& call;
  const Shared<MatrixPlace> place;
  ResidentBlock<F> block;
  const Shared<Pair<T>> g, b;               // G, -inf for excluded columns; b
  const Shared<T> top, f, a;                // t, -inf for excluded rows; F; a
  T log_target = 0, inverse_target = 1;     // of rows / columns
  T output_scale = 1;                       // of O and the plan
  bool all_columns = false;                 // take part
  T a_max = 0, largest = 0, row_error = 0;  // of this lane's rows

  __device__ ForwardMatrix(const ForwardCall<F>& c, SharedMemory& memory)
      : call(c),
        place(memory.take<MatrixPlace>(1)),
        block(memory, c.shape),
        g(memory.take<Pair<T>>(c.shape.cells)),
        b(memory.take<Pair<T>>(c.shape.cells)),
        top(memory.take<T>(c.shape.rows)),
        f(memory.take<T>(c.shape.rows)),
        a(memory.take<T>(c.shape.rows)) {
    block.take(memory);
    if (threadIdx.x == 0) place[0] = MatrixPlace(call.s, static_cast<int>(blockIdx.x) / call.shape.blocks, 0);
    block_sync();
  }

  __device__ MatrixPlace at() const { return place[0]; }
  __device__ int64_t index() const { return at().index; }
  __device__ int batch() const { return at().batch; }
  __device__ int n() const { return static_cast<int>(call.s.n); }
  __device__ int m() const { return static_cast<int>(call.s.m); }
  __device__ Rows<T> queries() const { return {call.q, at().q, n(), static_cast<int>(call.s.d)}; }
  __device__ PanelSource<T> keys() const { return {Rows<T>(call.k, at().k, m(), static_cast<int>(call.s.d)), Rows<T>()}; }
  /// V from a column on; nothing beyond its last one.
  __device__ PanelSource<T> values(int first_column) const {
    return PanelSource<T>(Rows<T>(call.v, at().v, m(), static_cast<int>(call.s.e)).columns(first_column));
  }

  __device__ int row_at(int strip, int h) const { return block.row_of(strip, h); }
  __device__ bool live(int row) const { return !(top[row] == -infinity<T>()); }
  /// Row potentials are written by the lane that owns the row.
  __device__ void keep_row(int step, int row, T potential) const {
    if (const int i = block.first_row() + row; i < n()) call.row[(index() * call.s.row_steps() + step / 2) * n() + i] = potential;
  }
  __device__ void keep_column(int step, int j, T potential) const {
    if (j < m() && cluster_rank() == 0) call.column[(index() * call.s.column_steps() + step / 2) * m() + j] = potential;
  }
  /// g before column step `step`.
  __device__ T column_before(int step, int j) const {
    if (step < 3 || j >= m()) return 0;
    return call.column[(index() * call.s.column_steps() + (step - 3) / 2) * m() + j];
  }

  __device__ __forceinline__ void run() {
    T columns = 0;
    block.own_cells([&](int cell) {
      Pair<T> start;
      for (int x = 0; x < 2; ++x) {
        const bool excluded = 2 * cell + x >= m() || call.masks.key(call.s, batch(), 2 * cell + x);
        start.x[x] = excluded ? -infinity<T>() : T(0);
        columns += excluded ? T(0) : T(1);
      }
      g[cell] = start;
      b[cell] = Pair<T>{{1, 1}};
    });
    block.post(1, columns, Sum{});

    const T size = static_cast<T>(n() > m() ? n() : m());
    int step = 0, last = static_cast<int>(call.s.iterations);
    Anchor anchor = Anchor::rows;
    bool first = true, rows_anchored = false, columns_anchored = false, final_anchor = false;  // since the last column step
    T b_max = 1;
    for (;;) {
      while (step < last) {
        const bool built = anchor != Anchor::keep;
        if (built) build(anchor, step, first);
        if (step % 2 == 0) {
          if (!built && step + 1 < last) row_step(step);  // the last one comes with the product
          if (first) count_lines();
          if (anchor == Anchor::rows) b_max = 1;
          first = false;
          anchor = Anchor::keep;
          ++step;
          continue;
        }
        block.post(0, a_max, Max{});
        sum_columns();
        T worst = 0, error = 0;
        column_step(step, worst, error);
        if (!built) {
          const T a_all = block.collect(0, Max{});
          if (!rows_anchored && !(a_all * b_max * size <= kLimit)) {  // the row step before went too far
            rows_anchored = true;
            anchor = Anchor::rows;
            --step;
            continue;
          }
          if (!columns_anchored && !(a_all * worst * size <= kLimit)) {
            columns_anchored = true;
            anchor = Anchor::columns;
            continue;
          }
        }
        if (call.s.tolerance > 0 && error <= static_cast<T>(call.s.tolerance)) {
          block.own_cells([&](int cell) { b[cell] = factors_before(step, cell); });
          last = step;
          break;
        }
        b_max = worst;
        anchor = Anchor::keep;
        rows_anchored = columns_anchored = false;
        ++step;
      }
      a_max = largest = row_error = 0;
      // A block decides alone whether it builds its rows once more, from column potentials that the first one has written.
      if (call.shape.blocks > 1 && last > 1 && !final_anchor) cluster_sync();
      multiply_values(last);
      if (last % 2 == 0 || last == 1 || final_anchor) break;
      T a_all = a_max, unused = 0;
      block.block_max(a_all, unused);
      if (a_all * b_max * size <= kLimit) break;
      final_anchor = true;
      anchor = Anchor::rows;
      step = last - 1;
    }
    measure(last);
    if (call.plan) write_plan();
    if (call.shape.blocks > 1) cluster_sync();  // others may still read this block's sums
  }

  /// Bit 2h + i for the entries of a lane that a pair mask hides: half h of a strip, column i of a cell.
  __device__ unsigned hidden_pairs(int strip, int cell) const {
    unsigned hidden = 0;
    if (call.masks.pairs)
#pragma unroll 1
      for (int k = 0; k < 4; ++k) {
        const int i = block.first_row() + row_at(strip, 0) + k / 2 * 8, j = 2 * cell + k % 2;
        if (i < n() && j < m() && call.masks.pair(call.s, batch(), i, j)) hidden |= 1u << k;
      }
    return hidden;
  }
  /// x_ij = S_ij + r_i + G_j of half h of a strip, for two columns, from products of Q and K; -inf for entries that take no part.
  __device__ Pair<T> logs(int cell, int h, const T (&c)[4], const T (&r)[2], const bool (&alive)[2], unsigned hidden) const {
    const Pair<T> column = g[cell];
    const T scale = static_cast<T>(call.s.scale);
    Pair<T> x;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool shown = alive[h] && column.x[i] > -infinity<T>() && (hidden >> (2 * h + i) & 1) == 0;
      x.x[i] = shown ? rounded_product(c[2 * h + i], scale) + r[h] + column.x[i] : -infinity<T>();
    }
    return x;
  }

  /// Builds R under new anchors. Anchored rows are normalised, too: that is row step `step`.
  __device__ void build(Anchor anchor, int step, bool first) {
    const bool by_rows = anchor == Anchor::rows;
    if (!first) {
      block.panels.discard();
      block.own_cells([&](int cell) {
        Pair<T> column = g[cell];
        for (int x = 0; x < 2; ++x)
          if (column.x[x] > -infinity<T>()) column.x[x] = by_rows ? column_before(step + 1, 2 * cell + x) : T(0);
        g[cell] = column;
        b[cell] = Pair<T>{{1, 1}};
      });
    }
    // The logarithms, for their maxima.
    block.own_strips(0, call.shape.row_strips(), [&](int strip, bool active) {
      T r[2] = {}, maximum[2] = {-infinity<T>(), -infinity<T>()}, potential[2] = {};
      bool alive[2] = {}, any[2] = {};
      if (active)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = row_at(strip, h), i = block.first_row() + row;
          alive[h] = first ? i < n() && !call.masks.query(call.s, batch(), i) : live(row);
          if (first || !alive[h]) continue;
          if (!by_rows) potential[h] = f[row] + log(a[row]);
          r[h] = potential[h] - top[row];
        }
      block.multiply_along(strip, active, queries(), Rows<T>(), keys(), [&](int cell, const T(&c)[4]) {
        const unsigned hidden = hidden_pairs(strip, cell);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Pair<T> x = logs(cell, h, c, r, alive, hidden);
          if (!kTwice || !by_rows) block.tile.put(row_at(strip, h), cell, F::cell(x.x[0], x.x[1]));
          maximum[h] = Top{}(Top{}(maximum[h], x.x[0]), x.x[1]);
          any[h] = any[h] || !(x.x[0] == -infinity<T>()) || !(x.x[1] == -infinity<T>());
        }
      });
      if (!active) return;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_at(strip, h);
        const bool there = row_any(any[h]);
        T largest_log = row_reduce(maximum[h], Top{});
        if (there && largest_log == -infinity<T>()) largest_log = not_a_number<T>();  // nothing but NaN
        if (lane_in_group() != 0) continue;
        if (first) {
          top[row] = largest_log;
          f[row] = 0;
          if (const int i = block.first_row() + row; i < n()) call.row_max[index() * call.s.n + i] = there ? largest_log : T(0);
        } else {
          f[row] = !by_rows ? potential[h] : there ? -largest_log : T(0);
        }
      }
    });
    if (!kTwice) block.panels.prefetch(values(0));
    if (by_rows) {
      warp_sync();
    } else {
      anchor_columns(step);
      block_sync();
    }
    // Their exponentials.
    a_max = 0;
    block.own_strips(0, call.shape.row_strips(), [&](int strip, bool active) {
      T r[2] = {}, sum[2] = {};
      bool alive[2] = {};
      if (active)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = row_at(strip, h);
          alive[h] = live(row);
          if (alive[h]) r[h] = kTwice ? f[row] - top[row] : by_rows ? (first ? -top[row] : static_cast<T>(f[row])) : T(0);
        }
      auto finish = [&](int cell, int h, const Pair<T>& x) {
        const typename F::Cell c = F::cell(exponential(x.x[0]), exponential(x.x[1]));
        block.tile.put(row_at(strip, h), cell, c);
        const Pair<T> rounded = F::values(c);
        sum[h] += rounded.x[0];
        sum[h] += rounded.x[1];
      };
      if constexpr (kTwice) {
        block.multiply_along(strip, active, queries(), Rows<T>(), keys(), [&](int cell, const T(&c)[4]) {
          const unsigned hidden = hidden_pairs(strip, cell);
#pragma unroll
          for (int h = 0; h < 2; ++h) finish(cell, h, logs(cell, h, c, r, alive, hidden));
        });
      } else if (active) {
        for (int cell = lane_in_group(); cell < call.shape.cells; cell += 4) {
          const Pair<T> shift = by_rows ? Pair<T>{} : static_cast<Pair<T>>(g[cell]);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const Pair<T> x = block.tile.values(row_at(strip, h), cell);
            finish(cell, h, {{x.x[0] + r[h] + shift.x[0], x.x[1] + r[h] + shift.x[1]}});
          }
        }
      }
      if (!active) return;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const T total = row_reduce(sum[h], Sum{});
        finish_row(step, row_at(strip, h), alive[h], by_rows ? total : T(1), by_rows);
      }
    });
    if (kTwice) block.panels.prefetch(values(0));
  }
  /// a = 1 / sum, in the lanes that hold a row.
  __device__ T finish_row(int step, int row, bool alive, T sum, bool keep) {
    // a is that of the potential as it is kept: later steps make up for its rounding, and the backward finds the same plan.
    const T anchor = f[row], potential = alive ? anchor - log(sum) : T(0), factor = alive ? exp(potential - anchor) : T(0);
    a_max = Max{}(a_max, factor);
    if (lane_in_group() != 0) return factor;
    a[row] = factor;
    if (keep) keep_row(step, row, potential);
    return factor;
  }
  /// G = -max of the logarithms that stand in the place of R, and b such that the potentials g stay what they were.
  __device__ void anchor_columns(int step) {
    block.reduce_columns(
        Max{}, [&](int row, int cell) { return block.tile.values(row, cell); },
        [&](int) {
          return Pair<T>{{-infinity<T>(), -infinity<T>()}};
        });
    block.own_cells([&](int cell) {
      const Pair<T> maximum = block.total(cell, Max{});
      Pair<T> column = g[cell];
      for (int x = 0; x < 2; ++x)
        if (column.x[x] > -infinity<T>()) column.x[x] = maximum.x[x] > -infinity<T>() ? -maximum.x[x] : T(0);
      g[cell] = column;
      b[cell] = factors_before(step, cell);
    });
  }
  /// b that stands for the column potentials before column step `step`.
  __device__ Pair<T> factors_before(int step, int cell) const {
    const Pair<T> column = g[cell];
    Pair<T> factor{{1, 1}};
    for (int x = 0; x < 2; ++x)
      if (column.x[x] > -infinity<T>()) factor.x[x] = exponential(column_before(step, 2 * cell + x) - column.x[x]);
    return factor;
  }

  __device__ void row_step(int step) {
    a_max = 0;
    block.multiply_vector(b, [&](int row, T sum) { finish_row(step, row, live(row), sum, true); });
  }

  __device__ void sum_columns() {
    block.reduce_columns(
        Sum{},
        [&](int row, int cell) {
          const Pair<T> x = block.tile.values(row, cell);
          const T weight = a[row];
          return Pair<T>{{weight * x.x[0], weight * x.x[1]}};
        },
        [&](int) { return Pair<T>{}; });
  }
  /// b from the column sums; its largest entry, and how far the columns of the plan before are from their target.
  __device__ void column_step(int step, T& worst, T& error) {
    block.own_cells([&](int cell) {
      const Pair<T> sum = block.total(cell, Sum{}), column = g[cell];
      Pair<T> factor = b[cell];
      for (int x = 0; x < 2; ++x) {
        if (!(column.x[x] > -infinity<T>())) {
          keep_column(step, 2 * cell + x, 0);
          continue;
        }
        const bool usable = sum.x[x] > 0 && sum.x[x] < infinity<T>();
        if (sum.x[x] > 0) error = Max{}(error, T(fabs(factor.x[x] * sum.x[x] * inverse_target - 1)));
        const T potential = column.x[x] + log_target - log(sum.x[x]);
        factor.x[x] = exp(potential - column.x[x]);  // as in finish_row()
        worst = Max{}(worst, usable ? factor.x[x] : infinity<T>());
        keep_column(step, 2 * cell + x, potential);
      }
      b[cell] = factor;
    });
    block.block_max(worst, error);
  }
  /// Rows and columns that take part.
  __device__ void count_lines() {
    if (call.masks.pairs) count_columns_of_pairs();
    T rows = 0;
    for (int row = static_cast<int>(warp_index()) * kStrip + lane_index(); row < call.shape.rows; row += call.shape.warps * kStrip)
      if (lane_index() < kStrip && live(row)) ++rows;
    block.post(2, rows, Sum{});
    block.exchange();
    rows = block.collect(2, Sum{});
    const T columns = rows > 0 ? block.collect(1, Sum{}, false) : T(0);
    all_columns = columns == T(m());
    if (columns > 0 && rows != columns) {
      log_target = log(rows) - log(columns);
      inverse_target = columns * inverse_count(rows);
    }
    if (call.s.rows_sum_to_inverse_count && rows > 0) output_scale = inverse_count(rows);
  }
  /// Pair masks may hide all of a column.
  __device__ void count_columns_of_pairs() {
    block.reduce_columns(
        Max{},
        [&](int row, int cell) {
          const Pair<T> column = g[cell];
          Pair<T> shown{};
          for (int x = 0; x < 2; ++x)
            if (live(row) && column.x[x] > -infinity<T>() && !call.masks.pair(call.s, batch(), block.first_row() + row, 2 * cell + x)) shown.x[x] = 1;
          return shown;
        },
        [&](int) { return Pair<T>{}; });
    T columns = 0;
    block.own_cells([&](int cell) {
      const Pair<T> shown = block.total(cell, Max{});
      columns += shown.x[0] + shown.x[1];
    });
    block.post(1, columns, Sum{});
  }

  /// O, with the last of `taken` half-steps if that is one of rows.
  __device__ void multiply_values(int taken) {
    const int e = static_cast<int>(call.s.e);
    block.own_strips(0, call.shape.row_strips(), [&](int strip, bool active) {
      T scale[2] = {};
      for (int first = 0; first < e; first += kChunk) {
        T c[4][2][4] = {}, sum[2] = {}, maximum[2] = {};
        auto left = [&](int line) {
          return order_over<F>(left_along<F>([&](int h, int cell) {
            const Pair<T> x = block.tile.values(row_at(strip, h), line / 2 + cell), y = b[line / 2 + cell];
            const T p[2] = {x.x[0] * y.x[0], x.x[1] * y.x[1]};
            sum[h] += p[0];
            sum[h] += p[1];
            maximum[h] = Top{}(Top{}(maximum[h], p[0]), p[1]);
            return F::cell(p[0], p[1]);
          }));
        };
        block.multiply_over(c, active, values(first), 2 * call.shape.cells, left);
        if (!active) continue;
        if (first == 0)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            scale[h] = output_scale * measure_row(taken, row_at(strip, h), row_reduce(sum[h], Sum{}), row_reduce(maximum[h], Top{}));
        block.each_output(c, e - first, [&](int h, int column, const T(&v)[4]) {
          const int i = block.first_row() + row_at(strip, h);
          const T scaled[4] = {v[0] * scale[h], v[1] * scale[h], v[2] * scale[h], v[3] * scale[h]};
          if (i < n()) call.out.put(at().o + int64_t{i} * call.s.heads * call.s.e + first + column, scaled, e - first - column);
        });
      }
    });
  }
  /// a of a row whose entries R_ij b_j have this sum and this maximum, in the lanes that hold it.
  __device__ T measure_row(int taken, int row, T sum, T maximum) {
    const bool alive = live(row), odd = taken % 2 == 1;
    const T factor = odd ? finish_row(taken - 1, row, alive, sum, true) : static_cast<T>(a[row]);
    largest = Max{}(largest, T(factor * maximum));
    if (!odd && alive) row_error = Max{}(row_error, T(fabs(factor * sum - 1)));
    return factor;
  }

  /// The statistics of the plan: half-steps, marginal error, largest entry.
  __device__ void measure(int taken) {
    block.post(0, largest, Max{});
    block.post(2, row_error, Max{});
    sum_columns();
    T error = 0, unused = 0;
    if (taken % 2 == 1)
      block.own_cells([&](int cell) {
        const Pair<T> sum = block.total(cell, Sum{}), factor = b[cell], column = g[cell];
        for (int x = 0; x < 2; ++x) {
          const T total = sum.x[x] * factor.x[x];
          if (column.x[x] > -infinity<T>() && (all_columns || total > 0)) error = Max{}(error, T(fabs(total * inverse_target - 1)));
        }
      });
    block.block_max(error, unused);
    const T entry = block.collect(0, Max{}), rows_error = block.collect(2, Max{});
    if (threadIdx.x != 0 || cluster_rank() != 0) return;
    const T stats[4] = {static_cast<T>(taken), taken % 2 == 1 ? error : rows_error, entry, 0};
#pragma unroll
    for (int k = 0; k < 4; ++k) call.stats[index() * 4 + k] = stats[k];
  }

  __device__ void write_plan() const {
    for (int row = warp_index(); row < call.shape.rows && block.first_row() + row < n(); row += call.shape.warps)
      for (int cell = lane_index(); cell < call.shape.cells; cell += kWarp) {
        const Pair<T> x = block.tile.values(row, cell), factor = b[cell];
        for (int k = 0; k < 2; ++k)
          if (2 * cell + k < m())
            call.plan[(index() * call.s.n + block.first_row() + row) * m() + 2 * cell + k] = a[row] * x.x[k] * factor.x[k] * output_scale;
      }
  }
};

template <class F>
__global__ void __launch_bounds__(kMaxWarps<F>* kWarp, 1) resident_forward(ForwardCall<F> call) {
  SharedMemory memory;
  ForwardMatrix<F>(call, memory).run();
}

template <class F>
bool forward(const AttentionShape& s, const Forward& x, AttentionVariant variant) {
  using T = typename F::Value;
  const int panel_cells = panel_cells_of(s.d, s.e);
  const ResidentShape shape = fit_resident<F>(s, variant, panel_cells, kColumnVectors, kRowVectors, false,
                                              [](const Launch& launch) { return takes_cluster(KERNEL(resident_forward<F>), launch); });
  if (shape.blocks == 0) return false;
  ForwardCall<F> call{.s = s,
                      .masks = AttentionMasksView(x.in),
                      .shape = shape,
                      .q = Matrices<T>(x.in[0], s.heads * s.d, s.d),
                      .k = Matrices<T>(x.in[1], s.heads * s.d, s.d),
                      .v = Matrices<T>(x.in[2], s.heads * s.e, s.e),
                      .out = Output<T>({span<T>(x.out), false}, s.heads * s.e, s.e),
                      .row = span<T>(x.saved[0]),
                      .column = span<T>(x.saved[1]),
                      .stats = span<T>(x.saved[2]),
                      .row_max = span<T>(x.saved[3]),
                      .plan = s.expose_plan ? span<T>(x.saved[4]) : Span<T>{}};
  launch(KERNEL(resident_forward<F>), shape.launch(s.matrices()), call);
  return true;
}

}  // namespace
}  // namespace resident

template <class T>
bool resident_attention_forward(const AttentionShape& s, const Forward& f, AttentionVariant variant) {
  return resident::with_format<T>(f.precision, [&]<class F>() { return resident::forward<F>(s, f, variant); });
}
template bool resident_attention_forward<float>(const AttentionShape&, const Forward&, AttentionVariant);
template bool resident_attention_forward<double>(const AttentionShape&, const Forward&, AttentionVariant);

}  // namespace sinkgrad::cuda
