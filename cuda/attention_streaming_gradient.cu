// The products of the backward of streaming Sinkhorn attention: dV = P^T dO (two products per pass), dQ = dS K and, with the sides swapped,
// dK = dS^T Q (three each: scores, dO V^T with the columns of A and B behind it, and the result). A block owns rows of the result, so
// nothing is added across blocks. The owned side is read once, the streamed one once per stripe.
#include <algorithm>

#include "cuda/attention_streaming_backward.h"

namespace sinkgrad::cuda::streaming {
namespace {

template <class F, int O>
constexpr int kValueBlocks = kDouble<F> || O > 2 ? 2 : 3;  ///< on a multiprocessor

template <class F, int O>
__global__ void __launch_bounds__(kStripeThreads, kValueBlocks<F, O>) attention_value_gradient(StripeGrid grid, ValueGradient<F> a, int ring_stride) {
  using Real = typename F::Value;
  constexpr int Q = kTile<F> / 8;
  SharedMemory memory;
  const SharedStripeBlock at(memory, grid);
  const int64_t first_row = at().first_stripe * grid.rows;
  const Packed<F>& x = a.queries.x;
  const int panels = x.panels();

  const Tile<F> own{memory.take<typename F::Cell>(grid.rows * tile_stride(a.keys.x.used)), tile_stride(a.keys.x.used)};
  TileRing<F> ring(memory, 2, ring_stride, 3);
  auto issue = [&](int item, int slot) {
    const int tile = item / (panels + 1), part = item % (panels + 1);
    const int64_t first = tile * kTile<F>;
    if (part == panels) {
      copy_rows(ring.rows(slot), a.queries.dx, at().matrix, first, kTile<F>, at().chunk * 16 * O, 16 * O);
      return;
    }
    copy_rows(ring.rows(slot), x, at().matrix, first, kTile<F>, part * kPanelCells<F>, x.panel(part));
    if (part < panels - 1) return;
    ring.copy_vector(slot, 0, a.queries.max, at().matrix * x.rows + first);
    ring.copy_vector(slot, 1, a.queries.potential, at().matrix * x.rows + first);
    ring.copy_vector(slot, 2, a.weight, at().matrix * x.rows + first);
  };
  if (at().tiles > 0) copy_rows(own, a.keys.x, at().matrix, first_row, grid.rows, 0, a.keys.x.used);
  ring.start(at().tiles * (panels + 1), issue);

  const int64_t row_base = at().matrix * a.keys.x.rows + first_row, batch = at().matrix / a.shape.heads, head = at().matrix % a.shape.heads;
  Real potential[1][2], weighted[1][2], out[1][O][4][4];
  each_row<1>([&](int i, int h, int r) {
    potential[i][h] = a.keys.potential[row_base + r];
    weighted[i][h] = 0;
  });
  clear(out);
  for (int tile = 0; tile < at().tiles; ++tile) {
    Real p[1][Q][4];
    const HiddenPairs<1, Q> hidden(a.masks, a.shape, batch, first_row, tile * kTile<F>, true);
    clear(p);
    int slot = 0;
    for (int part = 0; part < panels; ++part) {
      slot = ring.next(issue);
      multiply_rows(p, own, warp_row<1>(), part * kPanelCells<F>, ring.rows(slot), x.panel(part));
    }
    hidden.hide(p);
    each_column<Q>([&](int q, int c, int j) {
      const Real max = ring.value(slot, 0, j), query = ring.value(slot, 1, j), weight = ring.value(slot, 2, j);
      each_row<1>([&](int i, int h, int) {
        Real& e = p[i][q][2 * h + c];
        e = exp2_fast(((e - max) + query) + potential[i][h]);
        weighted[i][h] += rounded<F>(e) * weight;  // as dV has it
      });
    });
    slot = ring.next(issue);
    multiply_columns(out, p, ring.rows(slot));
  }

  each_row<1>([&](int i, int h, int r) {
    const Real sum = sum_of_quad(weighted[i][h]);
    if (at().chunk == 0 && lane_in_group() == 0) a.weighted[row_base + r] = sum;
  });
  const int64_t to = a.shape.v_at(batch, head, 0), next_row = a.shape.heads * a.shape.e;
  each_output(out, [&](int r, int column, Real v) {
    const int64_t j = first_row + r, c = at().chunk * 32 * O + column;
    if (j < a.shape.m && c < a.shape.e) a.dv[to + j * next_row + c] = v;
  });
}

/// What a round takes from a line: of queries f_k and df, of keys g_k, g_{k-1} and h / b. Base 2.
template <class Real>
struct RoundLine {
  Real potential = -infinity<Real>(), before = -infinity<Real>(), factor = 0;
  RoundLine() = default;
  /// Line `i`, nothing beyond the last one.
  __device__ RoundLine(const Rounds<Real>& a, const AttentionShape& s, int64_t matrix, int64_t round, int64_t pair, int64_t i, bool key) {
    if (i >= (key ? s.m : s.n)) return;
    const int64_t place = round * s.matrices() + matrix;
    if (key) {
      const int64_t at = (matrix * s.column_steps() + pair) * s.m + i;
      potential = a.column[at] * Real(kLog2E);
      before = pair > 0 ? a.column[at - s.m] * Real(kLog2E) : Real(0);
      factor = a.weight[place * padded(s.m) + i];
    } else {
      potential = a.row[(matrix * s.row_steps() + pair) * s.n + i] * Real(kLog2E);
      factor = a.df[place * padded(s.n) + i];
    }
  }
};

/// ds <- ds - sum over pairs (W h / b + exp(S + f_k + g_{k-1}) df): x holds S less the rows' maxima, rows are keys if `transposed`.
template <class Real, int Q>
__device__ void subtract_rounds(Real (&ds)[1][Q][4], const Real (&x)[1][Q][4], const Rounds<Real>& a, const AttentionShape& s, int64_t matrix,
                                int64_t first_row, int64_t first_column, bool transposed) {
#pragma unroll 1
  for (int64_t round = 0; round < a.count; ++round) {
    const int64_t pair = a.taken[matrix] / 2 - 1 - round;
    if (pair < 0) break;
    // Each lane loads some columns of the tile and hands them on to the others.
    RoundLine<Real> rows[2], columns[Q / 4];
    each_row<1>([&](int, int h, int r) { rows[h] = {a, s, matrix, round, pair, first_row + r, transposed}; });
#pragma unroll
    for (int k = 0; k < Q / 4; ++k) columns[k] = {a, s, matrix, round, pair, first_column + kWarp * k + lane_index(), !transposed};
    each_column<Q>([&](int q, int c, int j) {
      const Real potential = warp_shuffle(columns[q / 4].potential, j % kWarp), factor = warp_shuffle(columns[q / 4].factor, j % kWarp),
                 before = transposed ? Real(0) : warp_shuffle(columns[q / 4].before, j % kWarp);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const RoundLine<Real>& row = rows[h];
        const Real score = x[0][q][2 * h + c], f = transposed ? potential : row.potential, g = transposed ? row.potential : potential;
        const Real g_before = transposed ? row.before : before, weight = transposed ? row.factor : factor, df = transposed ? factor : row.factor;
        ds[0][q][2 * h + c] -= exp2_fast((score + f) + g) * weight + exp2_fast((score + f) + g_before) * df;
      }
    });
  }
}

template <class F, class T, int O>
__global__ void __launch_bounds__(kStripeThreads, 1) attention_score_gradient(StripeGrid grid, ScoreGradient<F, T> a, int ring_stride) {
  using Real = typename F::Value;
  constexpr int Q = kTile<F> / 8;
  SharedMemory memory;
  const SharedStripeBlock at(memory, grid);
  const int64_t first_row = at().first_stripe * grid.rows;
  const Packed<F>&x = a.streamed.x, &dx = a.streamed.dx;
  const int panels = x.panels(), d_panels = dx.panels();
  const bool held = panels == 1 && d_panels == 1;  // the tile of x is still there when the result is multiplied with it
  const int parts = panels + d_panels + (held ? 0 : 1);

  const Tile<F> own{memory.take<typename F::Cell>(grid.rows * tile_stride(a.own.x.used)), tile_stride(a.own.x.used)};
  const Tile<F> d_own{memory.take<typename F::Cell>(grid.rows * tile_stride(a.own.dx.used)), tile_stride(a.own.dx.used)};
  TileRing<F> ring(memory, 3, ring_stride, 2);
  auto issue = [&](int item, int slot) {
    const int tile = item / parts, part = item % parts;
    const int64_t first = tile * kTile<F>;
    const Tile<F> to = ring.rows(slot);
    if (part < panels) {
      // As wide as the result asks for, where it is held.
      copy_rows(to, x, at().matrix, first, kTile<F>, part * kPanelCells<F>, held ? x.width : x.panel(part));
    } else if (part < panels + d_panels) {
      copy_rows(to, dx, at().matrix, first, kTile<F>, (part - panels) * kPanelCells<F>, dx.panel(part - panels));
    } else {
      copy_rows(to, x, at().matrix, first, kTile<F>, at().chunk * 16 * O, 16 * O);
    }
    if (part != panels + d_panels - 1) return;
    ring.copy_vector(slot, 0, a.streamed.max, at().matrix * x.rows + first);
    ring.copy_vector(slot, 1, a.streamed.potential, at().matrix * x.rows + first);
  };
  if (at().tiles > 0) {
    copy_rows(own, a.own.x, at().matrix, first_row, grid.rows, 0, a.own.x.used);
    copy_rows(d_own, a.own.dx, at().matrix, first_row, grid.rows, 0, a.own.dx.used);
  }
  ring.start(at().tiles * parts, issue);

  const int64_t row_base = at().matrix * a.own.x.rows + first_row, batch = at().matrix / a.shape.heads;
  const bool drifts = a.rounds.drifts && a.rounds.drifts[at().matrix] != 0;
  Real max[1][2], potential[1][2], out[1][O][4][4];
  each_row<1>([&](int i, int h, int r) {
    max[i][h] = a.own.max[row_base + r];
    potential[i][h] = a.own.potential[row_base + r];
  });
  clear(out);
  for (int tile = 0; tile < at().tiles; ++tile) {
    Real s[1][Q][4], ds[1][Q][4];
    const HiddenPairs<1, Q> hidden(a.masks, a.shape, batch, first_row, tile * kTile<F>, a.transposed);
    clear(s);
    clear(ds);
    int slot = 0, x_slot = 0;
    for (int part = 0; part < panels; ++part) {
      x_slot = ring.next(issue);
      multiply_rows(s, own, warp_row<1>(), part * kPanelCells<F>, ring.rows(x_slot), x.panel(part));
    }
    for (int part = 0; part < d_panels; ++part) {
      slot = ring.next(issue);
      multiply_rows(ds, d_own, warp_row<1>(), part * kPanelCells<F>, ring.rows(slot), dx.panel(part));
    }
    hidden.hide(s);
    each_column<Q>([&](int q, int c, int j) {
      const Real column_max = ring.value(slot, 0, j), column = ring.value(slot, 1, j);
      each_row<1>([&](int i, int h, int) {
        Real& e = s[i][q][2 * h + c];
        e -= max[i][h] + column_max;  // one of them is 0
        ds[i][q][2 * h + c] *= exp2_fast((e + potential[i][h]) + column);
      });
    });
    if (drifts) subtract_rounds(ds, s, a.rounds, a.shape, at().matrix, first_row, tile * kTile<F>, a.transposed);
    if (!held) x_slot = ring.next(issue);
    multiply_columns(out, ds, ring.rows(x_slot));
  }

  const int64_t lines = a.transposed ? a.shape.m : a.shape.n, next_row = a.shape.heads * a.shape.d,
                to = batch * lines * next_row + at().matrix % a.shape.heads * a.shape.d;
  each_output(out, [&](int r, int column, Real v) {
    const int64_t i = first_row + r, c = at().chunk * 32 * O + column;
    if (i < lines && c < a.shape.d) a.out.put(to + i * next_row + c, static_cast<T>(v * a.factor));
  });
}

int chunks(int64_t columns, int width) { return columns > 0 ? static_cast<int>((columns + width - 1) / width) : 1; }

}  // namespace

template <class F>
void launch_value_gradient(const ValueGradient<F>& a) {
  using Cell = typename F::Cell;
  with_output_width<F>(a.shape.e, [&]<int O>() {
    const int stride = tile_stride(std::max(a.queries.x.panel(0), 16 * O));
    const StripePlan plan = choose_stripes({.matrices = a.shape.matrices(),
                                            .rows = a.shape.m,
                                            .columns = a.shape.n,
                                            .tile = kTile<F>,
                                            .chunks = chunks(a.shape.e, 32 * O),
                                            .bytes_per_row = tile_stride(a.keys.x.used) * sizeof(Cell),
                                            .bytes = TileRing<F>::bytes(2, stride, 3)});
    launch(KERNEL(attention_value_gradient<F, O>), plan.launch, plan.grid, a, stride);
  });
}

template <class F, class T>
void launch_score_gradient(const ScoreGradient<F, T>& a) {
  using Cell = typename F::Cell;
  const Packed<F>&x = a.streamed.x, &dx = a.streamed.dx;
  with_output_width<F>(a.shape.d, [&]<int O>() {
    const int stride = tile_stride(std::max({x.panel(0), dx.panel(0), 16 * O}));
    const StripePlan plan = choose_stripes({.matrices = a.shape.matrices(),
                                            .rows = a.transposed ? a.shape.m : a.shape.n,
                                            .columns = a.transposed ? a.shape.n : a.shape.m,
                                            .tile = kTile<F>,
                                            .chunks = chunks(a.shape.d, 32 * O),
                                            .bytes_per_row = (tile_stride(a.own.x.used) + tile_stride(a.own.dx.used)) * sizeof(Cell),
                                            .bytes = TileRing<F>::bytes(3, stride, 2)});
    launch(KERNEL(attention_score_gradient<F, T, O>), plan.launch, plan.grid, a, stride);
  });
}

template void launch_value_gradient(const ValueGradient<Full<float>>&);
template void launch_value_gradient(const ValueGradient<Full<double>>&);
template void launch_value_gradient(const ValueGradient<Tf32>&);
template void launch_value_gradient(const ValueGradient<Bf16>&);
template void launch_score_gradient(const ScoreGradient<Full<float>, float>&);
template void launch_score_gradient(const ScoreGradient<Full<double>, double>&);
template void launch_score_gradient(const ScoreGradient<Full<double>, float>&);
template void launch_score_gradient(const ScoreGradient<Tf32, float>&);
template void launch_score_gradient(const ScoreGradient<Bf16, float>&);

}  // namespace sinkgrad::cuda::streaming
