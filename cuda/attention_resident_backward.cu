// Sinkhorn attention with the matrix on chip, backward, from the potentials of the forward. With x = S - t, p = taken / 2 pairs of half-steps,
// P = exp(x + f_last + g_last) and D = dO V^T:
//   dV = P^T dO      dS = P o (D - delta 1^T - A B^T)      dQ = scale dS K      dK = scale dS^T Q      delta = <dO, O> by rows, if row-last
//   h_j = <V, dV>_j - (P^T delta)_j, the gradient of the last column potentials; then for the pairs c = p - 1 .. 0, b = rows / columns:
//   G = (h / b) e^(g_c - g_last)   rho = e^(f_c - f_last)   df = -rho o (P G)    A += rho, rho o df    B += G, e^(g_(c-1) - g_last)
//   h = -e^(g_(c-1) - g_last) o P^T (rho o df)                                   (column-last: delta is the first df's start, not in dS)
// A and B are two columns per pair, read by the tensor cores as more columns of dO and V. Where some potentials lie so far from the last ones
// that the factors could overflow, each half-step's own matrix exp(x + f_c + g_c) is built and multiplied instead.
// Global memory: Q, dO and O once; K twice, V once, Q and dO once more per block of a cluster. Shared memory: once per half-step.
#include "cuda/attention_resident.h"

namespace sinkgrad::cuda {
namespace resident {
namespace {

constexpr int kColumnVectors = 3, kRowVectors = 2;
constexpr double kDrift = 40;

template <class F>
struct BackwardMatrix {
  using T = typename F::Value;

  const BackwardCall<F>& call;
  const Shared<MatrixPlace> place;
  ResidentBlock<F> block;
  const Shared<Pair<T>> column, weight, direct;  // g in the exponent, -inf for excluded columns; G; <V, dV>
  const Shared<T> delta, u;                      // u = rho df
  T inverse_target = 1;                          // columns / rows
  T output_scale = 1;                            // of O

  __device__ BackwardMatrix(const BackwardCall<F>& c, SharedMemory& memory)
      : call(c),
        place(memory.take<MatrixPlace>(1)),
        block(memory, c.shape),
        column(memory.take<Pair<T>>(c.shape.cells)),
        weight(memory.take<Pair<T>>(c.shape.cells)),
        direct(memory.take<Pair<T>>(c.shape.cells)),
        delta(memory.take<T>(c.shape.rows)),
        u(memory.take<T>(c.shape.rows)) {
    block.take(memory);
    if (threadIdx.x == 0) {
      const int index = static_cast<int>(blockIdx.x) / call.shape.blocks;
      place[0] = MatrixPlace(call.s, index, static_cast<int>(call.stats[int64_t{index} * 4]));
    }
    block_sync();
  }

  __device__ MatrixPlace at() const { return place[0]; }
  __device__ int n() const { return static_cast<int>(call.s.n); }
  __device__ int m() const { return static_cast<int>(call.s.m); }
  __device__ int d() const { return static_cast<int>(call.s.d); }
  __device__ int e() const { return static_cast<int>(call.s.e); }
  __device__ Rows<T> queries() const { return {call.q, at().q, n(), d()}; }
  __device__ Rows<T> keys() const { return {call.k, at().k, m(), d()}; }
  __device__ Rows<T> values() const { return {call.v, at().v, m(), e()}; }
  __device__ Rows<T> d_out() const { return {call.d_out, at().o, n(), e()}; }
  __device__ bool frozen() const { return call.s.gradient == SinkhornGradient::frozen; }
  // Potentials of the plan; -1: none.
  __device__ bool odd() const { return at().taken % 2 == 1; }
  __device__ int row_last() const { return (at().taken - 1) / 2; }
  __device__ int column_last() const { return at().taken / 2 - 1; }
  __device__ int pairs() const { return frozen() ? (odd() ? 0 : 1) : at().taken / 2; }

  __device__ int row_at(int strip, int h) const { return block.row_of(strip, h); }
  __device__ T f(int k, int i) const { return i < n() ? static_cast<T>(call.row[(int64_t{at().index} * call.s.row_steps() + k) * n() + i]) : T(0); }
  __device__ T g(int k, int j) const {
    return k >= 0 && j < m() ? static_cast<T>(call.column[(int64_t{at().index} * call.s.column_steps() + k) * m() + j]) : T(0);
  }
  /// Which column step a pair holds; the row step before it has the same number.
  __device__ int step_of(int pair) const { return frozen() ? column_last() : pair; }
  __device__ Rows<T> row_factors() const {
    return {Matrices<T>(call.row_factors, call.factors), int64_t{at().index} * call.s.n * call.factors, n(), used_factors()};
  }
  __device__ Rows<T> column_factors() const {
    return {Matrices<T>(call.column_factors, call.factors), int64_t{at().index} * call.s.m * call.factors, m(), used_factors()};
  }
  __device__ int used_factors() const { return round_up(2 * pairs(), 4); }
  /// Columns of a pair's factors; the last pair to come fills up with zeros what vectors hold besides.
  __device__ void put_factors(const Span<T>& to, int64_t line, int pair, T x, T y) const {
    const int64_t at = line * call.factors;
    to[at + 2 * pair] = x;
    to[at + 2 * pair + 1] = y;
    if (pair == 0)
      for (int k = 2 * pairs(); k < used_factors(); ++k) to[at + k] = 0;
  }

  __device__ int slice() const { return (call.shape.column_strips() + call.shape.blocks - 1) / call.shape.blocks; }
  __device__ int slice_begin() const { return cluster_rank() * slice(); }
  __device__ int slice_end() const {
    const int end = slice_begin() + slice();
    return end < call.shape.column_strips() ? end : call.shape.column_strips();
  }
  /// Whether this block computes the gradients of these keys.
  __device__ bool in_slice(int cell) const { return cell / 8 >= slice_begin() && cell / 8 < slice_end(); }

  __device__ __forceinline__ void run() {
    const bool scores_wanted = call.dq || call.dk, products_wanted = call.dv || (scores_wanted && pairs() > 0 && !frozen());
    fill_columns(column_last());
    T far = 0;
    if (scores_wanted) far = drift();
    block.post(0, far, Max{});
    bool drifted = false;
    int pair = pairs() - 1, row_step = row_last();
    enum class Stage : uint8_t { plan, row_half, column_half, plan_again, correct } stage = Stage::plan;
    for (;;) {
      if (stage == Stage::correct) {
        correct_scores();
        break;
      }
      build(row_step, stage == Stage::plan, stage == Stage::plan && products_wanted && slice_begin() < slice_end());
      if (stage == Stage::plan) {
        measure();
        drifted = scores_wanted && pairs() > 0 && !(block.collect(0, Max{}) <= static_cast<T>(kDrift));
        if (products_wanted) multiply_transposed(d_out(), call.dv, e(), output_scale, pairs() > 0 && !frozen());
        if (!scores_wanted) break;
        start_weights();
        if (!drifted) walk();
      }
      if (stage == Stage::plan_again || !drifted) {
        block.sync();  // factors are there
        score_gradients(drifted ? 0 : used_factors());
        if (!drifted) break;
        stage = Stage::correct;
        continue;
      }
      // The pairs by their own matrices.
      if (stage == Stage::row_half) {
        block.multiply_vector(weight, [&](int row, T sum) {
          if (lane_in_group() != 0) return;
          const T df = start_of(pair, row) - sum;
          u[row] = df;
          if (const int i = block.first_row() + row; i < n()) put_factors(call.row_factors, int64_t{at().index} * call.s.n + i, pair, 0, df);
        });
        stage = pair > 0 ? Stage::column_half : Stage::plan_again;
      } else if (stage == Stage::column_half) {
        sum_columns(u, T(-1), false);
        --pair;
        block.own_cells([&](int cell) {
          const Pair<T> h = block.total(cell, Sum{});
          put_weights(cell, {{h.x[0] * inverse_target, h.x[1] * inverse_target}});
        });
        stage = Stage::row_half;
      } else {
        stage = Stage::row_half;
      }
      if (stage == Stage::row_half) put_column_factors(pair);
      block_sync();  // everyone is done with the columns of the last matrix
      row_step = stage == Stage::plan_again ? row_last() : step_of(pair);
      fill_columns(stage == Stage::plan_again ? column_last() : stage == Stage::row_half ? step_of(pair) : step_of(pair) - 1);
    }
    if (scores_wanted) multiply_scores();
    if (call.shape.blocks > 1) cluster_sync();  // others may still read this block's matrix
  }

  __device__ void fill_columns(int k) const {
    block.own_cells([&](int cell) {
      Pair<T> potential;
      for (int x = 0; x < 2; ++x) {
        const int j = 2 * cell + x;
        potential.x[x] = j < m() && !call.masks.key(call.s, at().batch, j) ? g(k, j) : -infinity<T>();
      }
      column[cell] = potential;
    });
  }
  /// How far potentials lie from those of the plan.
  __device__ T drift() const {
    T far = 0;
    for (int j = static_cast<int>(threadIdx.x); j < m() && pairs() > 0; j += static_cast<int>(blockDim.x))
      for (int k = -1; k < column_last(); ++k) far = Max{}(far, T(fabs(g(k, j) - g(column_last(), j))));
    for (int row = static_cast<int>(threadIdx.x); row < call.shape.rows && pairs() > 0; row += static_cast<int>(blockDim.x))
      for (int k = 0; k < row_last(); ++k) far = Max{}(far, T(fabs(f(k, block.first_row() + row) - f(row_last(), block.first_row() + row))));
    return far;
  }

  /// The matrix exp(x + f_k + column); counts rows that take part, for measure().
  __device__ void build(int k, bool count, bool outputs_next) {
    const T scale = static_cast<T>(call.s.scale);
    T rows = 0;
    block.own_strips(0, call.shape.row_strips(), [&](int strip, bool active) {
      T top[2] = {}, potential[2] = {};
      bool alive[2] = {}, any[2] = {};
      if (active)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int i = block.first_row() + row_at(strip, h);
          alive[h] = i < n() && !call.masks.query(call.s, at().batch, i);
          if (!alive[h]) continue;
          top[h] = call.row_max[int64_t{at().index} * call.s.n + i];
          potential[h] = f(k, i);
        }
      const PanelSource<T> source(keys(), {});
      block.multiply_along(strip, active, queries(), Rows<T>(), source, [&](int cell, const T(&c)[4]) {
        const Pair<T> held = column[cell];
        const unsigned hidden = hidden_pairs(strip, cell);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          T y[2];
#pragma unroll
          for (int x = 0; x < 2; ++x) {
            const bool there = alive[h] && held.x[x] > -infinity<T>() && (hidden >> (2 * h + x) & 1) == 0;
            y[x] = there ? rounded_product(c[2 * h + x], scale) - top[h] + held.x[x] + potential[h] : -infinity<T>();
          }
          any[h] = any[h] || !(y[0] == -infinity<T>()) || !(y[1] == -infinity<T>());
          block.tile.put(row_at(strip, h), cell, F::cell(exponential(y[0]), exponential(y[1])));
        }
      });
      if (!active || !count) return;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (row_any(any[h]) && lane_in_group() == 0) ++rows;
    });
    if (count) block.post(2, rows, Sum{});
    if (outputs_next) block.panels.prefetch(PanelSource<T>(d_out().columns(0)));
  }
  /// Bit 2h + i for the entries of a lane that a pair mask hides: half h of a strip, column i of a cell.
  __device__ unsigned hidden_pairs(int strip, int cell) const {
    unsigned hidden = 0;
    if (call.masks.pairs)
#pragma unroll 1
      for (int k = 0; k < 4; ++k) {
        const int i = block.first_row() + row_at(strip, 0) + k / 2 * 8, j = 2 * cell + k % 2;
        if (i < n() && j < m() && call.masks.pair(call.s, at().batch, i, j)) hidden |= 1u << k;
      }
    return hidden;
  }

  /// Once the plan is there: who takes part, and delta. The barrier also shows the matrix to all that multiply it.
  __device__ void measure() {
    T columns = 0;
    block.own_cells([&](int cell) {
      const Pair<T> potential = column[cell];
      for (int x = 0; x < 2; ++x)
        if (potential.x[x] > -infinity<T>()) ++columns;
    });
    block.post(1, columns, Sum{});
    block.exchange();
    const T valid_rows = block.collect(2, Sum{}), valid_columns = block.collect(1, Sum{}, false);
    if (valid_rows != valid_columns && valid_rows > 0 && valid_columns > 0) inverse_target = valid_columns * inverse_count(valid_rows);
    const T times = valid_rows > 0 && call.s.rows_sum_to_inverse_count ? valid_rows : T(1);  // undoes the scale of O
    output_scale = inverse_count(times);
    const Rows<T> out(call.out, at().o, n(), e());
    for (int strip = warp_index(); strip < call.shape.row_strips(); strip += call.shape.warps)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        T sum = 0;
        const Rows<T> out_row = out.row(block.first_row() + row_at(strip, h)), d_row = d_out().row(block.first_row() + row_at(strip, h));
        for (int cell = lane_in_group(); 2 * cell < e(); cell += 4) {
          const Pair<T> x = out_row(cell), y = d_row(cell);
          sum += x.x[0] * y.x[0];
          sum += x.x[1] * y.x[1];
        }
        sum = row_reduce(sum, Sum{});
        if (lane_in_group() == 0) delta[row_at(strip, h)] = sum * times;
      }
  }

  /// to = scale matrix^T x for this block's keys; with `dot` also their products with V.
  __device__ void multiply_transposed(const Rows<T>& x, const Output<T>& to, int width, T scale, bool dot) {
    const int limit = call.shape.blocks * call.shape.rows;
    block.own_strips(slice_begin(), slice_end(), [&](int strip, bool active) {
      T product[2] = {};
      for (int first = 0; first < width; first += kChunk) {
        T c[4][2][4] = {};
        auto left = [&](int line) {
          if (call.shape.blocks == 1) return left_over<F>(line, 8 * strip, block.tile);
          const int rank = line / call.shape.rows;
          const Tile<F> theirs{cluster_peer(block.tile.cells, rank), block.tile.stride};
          return left_over<F>(line - rank * call.shape.rows, 8 * strip, theirs);
        };
        block.multiply_over(c, active, PanelSource<T>(x.columns(first)), limit, left);
        if (!active) continue;
        block.each_output(c, width - first, [&](int h, int k, const T(&v)[4]) {
          const int j = strip * kStrip + 2 * lane_group() + h;
          if (j >= m()) return;
          if (dot) {
            const Rows<T> row = values().row(j);
            const Pair<T> y = row((first + k) / 2), z = row((first + k) / 2 + 1);
            product[h] += v[0] * y.x[0] + v[1] * y.x[1] + v[2] * z.x[0] + v[3] * z.x[1];
          }
          if (!to) return;
          const T scaled[4] = {v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale};
          to.put((at().batch * call.s.m + j) * call.s.heads * width + at().head * width + first + k, scaled, width - first - k);
        });
      }
      if (!active || !dot) return;
      const Pair<T> sum{{row_reduce(product[0], Sum{}), row_reduce(product[1], Sum{})}};
      if (lane_in_group() == 0) direct[8 * strip + lane_group()] = sum;
    });
  }

  /// sign sum_i w_i matrix_ij, plus the direct products.
  __device__ void sum_columns(const Shared<T>& w, T sign, bool with_direct) {
    block.reduce_columns(
        Sum{},
        [&](int row, int cell) {
          const Pair<T> x = block.tile.values(row, cell);
          const T y = sign * w[row];
          return Pair<T>{{y * x.x[0], y * x.x[1]}};
        },
        [&](int cell) { return with_direct && in_slice(cell) ? static_cast<Pair<T>>(direct[cell]) : Pair<T>{}; });
  }
  __device__ void put_weights(int cell, const Pair<T>& w) const { weight[cell] = w; }
  /// h / b of the last column step.
  __device__ void start_weights() {
    if (pairs() == 0 || frozen()) {
      block.own_cells([&](int cell) { weight[cell] = Pair<T>{}; });
      block.sync();  // nobody reads the plan of this block any more
      return;
    }
    sum_columns(delta, odd() ? T(-1) : T(0), true);
    block.own_cells([&](int cell) {
      const Pair<T> h = block.total(cell, Sum{});
      put_weights(cell, {{h.x[0] * inverse_target, h.x[1] * inverse_target}});
    });
  }
  /// df of the first pair starts with delta where the plan ends on columns.
  __device__ T start_of(int pair, int row) const { return !odd() && pair == pairs() - 1 ? static_cast<T>(delta[row]) : T(0); }
  __device__ void put_column_factors(int pair) const {
    block.own_cells([&](int cell) {
      const Pair<T> w = weight[cell];
      for (int x = 0; x < 2; ++x)
        if (2 * cell + x < m() && in_slice(cell)) put_factors(call.column_factors, int64_t{at().index} * call.s.m + 2 * cell + x, pair, w.x[x], 0);
    });
  }

  /// All pairs by the plan.
  __device__ void walk() {
    for (int pair = pairs() - 1; pair >= 0; --pair) {
      const int k = step_of(pair);
      block.own_cells([&](int cell) {
        Pair<T> w = weight[cell];
        for (int x = 0; x < 2; ++x) {
          const int j = 2 * cell + x;
          const T last = g(column_last(), j);
          w.x[x] *= exponential(g(k, j) - last);
          if (j < m() && in_slice(cell))
            put_factors(call.column_factors, int64_t{at().index} * call.s.m + j, pair, w.x[x], exponential(g(k - 1, j) - last));
        }
        weight[cell] = w;
      });
      block_sync();
      block.multiply_vector(weight, [&](int row, T sum) {
        if (lane_in_group() != 0) return;
        const int i = block.first_row() + row;
        const T rho = exponential(f(k, i) - f(row_last(), i)), product = rho * (start_of(pair, row) - rho * sum);
        u[row] = product;
        if (i < n()) put_factors(call.row_factors, int64_t{at().index} * call.s.n + i, pair, -rho, -product);
      });
      if (pair == 0) break;
      sum_columns(u, T(-1), false);
      block.own_cells([&](int cell) {
        const Pair<T> h = block.total(cell, Sum{});
        Pair<T> w;
        for (int x = 0; x < 2; ++x) w.x[x] = h.x[x] * inverse_target * exponential(g(k - 1, 2 * cell + x) - g(column_last(), 2 * cell + x));
        put_weights(cell, w);
      });
    }
  }

  /// dS in the place of P, with so many columns of A and B.
  __device__ void score_gradients(int factors) {
    Rows<T> a = row_factors(), b = column_factors();
    a.width = b.width = factors;
    const PanelSource<T> source(values(), b);
    block.own_strips(0, call.shape.row_strips(), [&](int strip, bool active) {
      T shift[2] = {};
      if (active && odd())
#pragma unroll
        for (int h = 0; h < 2; ++h) shift[h] = delta[row_at(strip, h)];
      block.multiply_along(strip, active, d_out(), a, source, [&](int cell, const T(&c)[4]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Pair<T> p = block.tile.values(row_at(strip, h), cell);
          block.tile.put(row_at(strip, h), cell, F::cell(p.x[0] * (c[2 * h] - shift[h]), p.x[1] * (c[2 * h + 1] - shift[h])));
        }
      });
    });
  }
  /// Subtracts the pairs' terms from dS, each exponent evaluated as a whole.
  __device__ void correct_scores() {
    const T scale = static_cast<T>(call.s.scale);
    const PanelSource<T> source(keys(), {});
    block.own_strips(0, call.shape.row_strips(), [&](int strip, bool active) {
      block.multiply_along(strip, active, queries(), Rows<T>(), source, [&](int cell, const T(&c)[4]) {
        const Pair<T> held = column[cell];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int i = block.first_row() + row_at(strip, h);
          const bool alive = i < n() && !call.masks.query(call.s, at().batch, i);
          Pair<T> ds = block.tile.values(row_at(strip, h), cell);
#pragma unroll
          for (int x = 0; x < 2; ++x) {
            const int j = 2 * cell + x;
            if (!alive || !(held.x[x] > -infinity<T>())) continue;  // pairs of half-steps and masks of pairs exclude each other
            const T score = rounded_product(c[2 * h + x], scale) - call.row_max[int64_t{at().index} * call.s.n + i];
            for (int pair = 0; pair < pairs(); ++pair) {
              const int k = step_of(pair);
              ds.x[x] -= exponential(score + g(k, j) + f(k, i)) * call.column_factors[(int64_t{at().index} * call.s.m + j) * call.factors + 2 * pair];
              ds.x[x] -=
                  exponential(score + g(k - 1, j) + f(k, i)) * call.row_factors[(int64_t{at().index} * call.s.n + i) * call.factors + 2 * pair + 1];
            }
          }
          block.tile.put(row_at(strip, h), cell, F::cell(ds.x[0], ds.x[1]));
        }
      });
    });
  }

  /// dQ and dK, in this order because they may be the same memory.
  __device__ void multiply_scores() {
    const T scale = static_cast<T>(call.s.scale) * output_scale;
    if (call.dq)
      block.own_strips(0, call.shape.row_strips(), [&](int strip, bool active) {
        for (int first = 0; first < d(); first += kChunk) {
          T c[4][2][4] = {};
          auto left = [&](int line) {
            return order_over<F>(left_along<F>([&](int h, int cell) { return block.tile(row_at(strip, h), line / 2 + cell); }));
          };
          block.multiply_over(c, active, PanelSource<T>(keys().columns(first)), 2 * call.shape.cells, left);
          if (!active) continue;
          block.each_output(c, d() - first, [&](int h, int k, const T(&v)[4]) {
            const int i = block.first_row() + row_at(strip, h);
            const T scaled[4] = {v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale};
            if (i < n()) call.dq.put(call.s.q_at(at().batch, at().head, i) + first + k, scaled, d() - first - k);
          });
        }
      });
    if (!call.dk) return;
    block.sync();
    multiply_transposed(queries(), call.dk, d(), scale, false);
  }
};

template <class F>
__global__ void __launch_bounds__(kMaxWarps<F>* kWarp, 1) resident_backward(BackwardCall<F> call) {
  SharedMemory memory;
  BackwardMatrix<F>(call, memory).run();
}

template <class T>
__global__ void add_gradient(Span<const T> x, GradSpan<T> y) {
  for (int64_t i = thread_index(); i < x.count; i += thread_count()) y.put(i, x[i]);
}

template <class F>
bool backward(const AttentionShape& s, const Backward& x, AttentionVariant variant) {
  using T = typename F::Value;
  if (s.gradient == SinkhornGradient::implicit) return false;
  const int64_t factors = round_up(static_cast<int>(s.iterations / 2 * 2), 4), along = round_up(static_cast<int>(s.e), 16) + factors;
  const ResidentShape shape =
      fit_resident<F>(s, variant, panel_cells_of(s.d > along ? s.d : along, s.d > s.e ? s.d : s.e), kColumnVectors, kRowVectors, true,
                      [](const Launch& launch) { return takes_cluster(KERNEL(resident_backward<F>), launch); });
  if (shape.blocks == 0) return false;
  const bool scores_wanted = x.in_grad[0] || x.in_grad[1];
  if (!scores_wanted && !x.in_grad[2]) return true;
  Scratch scratch;
  // dV is ready first; where it shares memory with dQ or dK, it must come last.
  const bool shared = x.in_grad[2] && (x.in_grad[2].view.data == x.in_grad[0].view.data || x.in_grad[2].view.data == x.in_grad[1].view.data);
  const GradSpan<T> dv = x.in_grad[2] ? span<T>(x.in_grad[2]) : GradSpan<T>{};
  const Span<T> aside = shared ? scratch.take<T>(dv.data.count) : Span<T>{};
  auto output = [](const Grad& grad, int64_t row, int64_t width) { return grad ? Output<T>(span<T>(grad), row, width) : Output<T>{}; };
  BackwardCall<F> call{.s = s,
                       .masks = AttentionMasksView(x.in),
                       .shape = shape,
                       .q = Matrices<T>(x.in[0], s.heads * s.d, s.d),
                       .k = Matrices<T>(x.in[1], s.heads * s.d, s.d),
                       .v = Matrices<T>(x.in[2], s.heads * s.e, s.e),
                       .out = Matrices<T>(x.out, s.heads * s.e, s.e),
                       .d_out = Matrices<T>(x.out_grad, s.heads * s.e, s.e),
                       .row = span<const T>(x.saved[0]),
                       .column = span<const T>(x.saved[1]),
                       .stats = span<const T>(x.saved[2]),
                       .row_max = span<const T>(x.saved[3]),
                       .dq = output(x.in_grad[0], s.heads * s.d, s.d),
                       .dk = output(x.in_grad[1], s.heads * s.d, s.d),
                       .dv = shared ? Output<T>({aside, false}, s.heads * s.e, s.e) : output(x.in_grad[2], s.heads * s.e, s.e),
                       .row_factors = scratch.take<T>(scores_wanted ? s.matrices() * s.n * factors : 0),
                       .column_factors = scratch.take<T>(scores_wanted ? s.matrices() * s.m * factors : 0),
                       .factors = static_cast<int>(factors)};
  launch(KERNEL(resident_backward<F>), shape.launch(s.matrices()), call);
  if (shared) launch(KERNEL(add_gradient<T>), grid_stride(dv.data.count), Span<const T>(aside), dv);
  return true;
}

}  // namespace
}  // namespace resident

template <class T>
bool resident_attention_backward(const AttentionShape& s, const Backward& b, AttentionVariant variant) {
  return resident::with_format<T>(b.precision, [&]<class F>() { return resident::backward<F>(s, b, variant); });
}
template bool resident_attention_backward<float>(const AttentionShape&, const Backward&, AttentionVariant);
template bool resident_attention_backward<double>(const AttentionShape&, const Backward&, AttentionVariant);

}  // namespace sinkgrad::cuda
