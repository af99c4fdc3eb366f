// One sweep of streaming Sinkhorn attention: a row step and the column sums that the next column step needs, or a row product and
// a column product with the plan for the gradients. Q is read once, K once per stripe (from L2), a partial sum per stripe and column
// is written. Scores that stay on chip are computed once, one product per sweep; for the others it is two.
#include "cuda/attention_streaming.h"

namespace sinkgrad::cuda::streaming {
namespace {

template <class F>
__global__ void __launch_bounds__(kStripeThreads, 2) attention_sweep(StripeGrid grid, Sweep<F> a) {
  using Real = typename F::Value;
  constexpr int M = kRowTiles<F>, Q = kTile<F> / 8;
  SharedMemory memory;
  const SharedStripeBlock at(memory, grid);
  if (a.active && a.active[at().matrix] == 0) return;
  const int64_t column_base = at().matrix * a.k.rows + at().first_tile * kTile<F>;
  const int panels = a.k.panels();
  const bool column_sums = static_cast<bool>(a.partial), weighted = static_cast<bool>(a.weight);

  const Tile<F> own{memory.take<typename F::Cell>(grid.rows * tile_stride(a.q.used)), tile_stride(a.q.used)};
  TileRing<F> ring(memory, 2, tile_stride(a.k.panel(0)), 2);
  ColumnSums<F> sums(memory);
  const Shared<Real> shares = memory.take<Real>(2 * grid.rows);
  const KeptTiles<Real> kept{memory.take<Real>(grid.space)};

  auto issue = [&](int item, int slot) {
    const int part = item % panels;
    int tile = item / panels;
    if (tile >= at().tiles) tile += at().kept - at().tiles;
    copy_rows(ring.rows(slot), a.k, at().matrix, (at().first_tile + tile) * kTile<F>, kTile<F>, part * kPanelCells<F>, a.k.panel(part));
    if (part < panels - 1) return;
    ring.copy_vector(slot, 0, a.column, column_base + tile * kTile<F>);
    if (weighted) ring.copy_vector(slot, 1, a.weight, column_base + tile * kTile<F>);
  };

  for (int64_t stripe = at().first_stripe; stripe < at().last_stripe; ++stripe) {
    const int64_t first_row = stripe * grid.rows, row_base = at().matrix * a.q.rows + first_row;
    if (at().tiles > 0) copy_rows(own, a.q, at().matrix, first_row, grid.rows, 0, a.q.used);
    ring.start((at().tiles + (column_sums ? at().tiles - at().kept : 0)) * panels, issue);

    Real top[M][2], row[M][2];
    PowerSum<Real> total[M][2];
    each_row<M>([&](int i, int h, int r) {
      row[i][h] = a.rows.potential[row_base + r];
      top[i][h] = a.first ? Real(0) : static_cast<Real>(a.rows.max[row_base + r]);
      if (!a.first) total[i][h].max = 0;
    });

    Real c[M][Q][4];
    // Scores of the next tile, or where the rows' maxima are known their powers.
    auto next_tile = [&](int tile) {
      const HiddenPairs<M, Q> hidden(a.masks, a.shape, at().matrix / a.shape.heads, first_row, (at().first_tile + tile) * kTile<F>, false);
      clear(c);
      int slot = 0;
      for (int part = 0; part < panels; ++part) {
        slot = ring.next(issue);
        multiply_rows(c, own, warp_row<M>(), part * kPanelCells<F>, ring.rows(slot), a.k.panel(part));
      }
      hidden.hide(c);
      each_column<Q>([&](int q, int x, int j) {
        const Real column = ring.value(slot, 0, j);
        each_row<M>([&](int i, int h, int) {
          Real& e = c[i][q][2 * h + x];
          e = a.first ? e + column : exp2_fast(((e - top[i][h]) + row[i][h]) + column);
        });
      });
      return slot;
    };

    for (int tile = 0; tile < at().tiles; ++tile) {
      const int slot = next_tile(tile);
      if (a.first) {
        each_row<M>([&](int i, int h, int) { total[i][h].add_powers(c[i], h); });
      } else {
        each_column<Q>([&](int q, int x, int j) {
          const Real weight = weighted ? ring.value(slot, 1, j) : Real(1);
          each_row<M>([&](int i, int h, int) { total[i][h].sum += c[i][q][2 * h + x] * weight; });
        });
      }
      if (tile < at().kept) kept.store(tile, c);
    }

    complete_rows<M>(total, grid, shares);
    Real w[M][2];
    warp_sync();  // all lanes have read their potentials
    each_row<M>([&](int i, int h, int r) {
      const bool writes = at().rank == 0 && lane_in_group() == 0;
      if (a.rule.normalise) {
        const NewRow<Real> f(total[i][h], a.first, top[i][h], row[i][h]);
        w[i][h] = f.weight;  // of powers of the old potential; those of the first step are only taken now
        if (a.first) {
          top[i][h] = f.max;
          row[i][h] = f.row;
        }
        if (writes) {
          a.rows.potential[row_base + r] = f.row;
          if (a.first) a.rows.max[row_base + r] = f.max;
          a.rows.keep(f, a.first, at().matrix, a.step, first_row + r);
        }
      } else {
        const Real x = a.rule.x ? static_cast<Real>(a.rule.x[row_base + r]) : Real(0),
                   y = a.rule.y ? static_cast<Real>(a.rule.y[row_base + r]) : Real(1);
        w[i][h] = y > 0 ? (x + a.rule.sign * total[i][h].sum) / y : Real(0);
        if (writes && a.rule.w) a.rule.w[row_base + r] = w[i][h];
      }
    });

    if (column_sums) {
      const int64_t to = (at().matrix * grid.parts + at().part) * a.k.rows + at().first_tile * kTile<F>;
      for (int tile = 0; tile < at().tiles; ++tile) {
        if (tile < at().kept)
          kept.load(tile, c);
        else
          next_tile(tile);
        Real u[2 * Q];
        each_column<Q>([&](int q, int x, int) {
          u[2 * q + x] = 0;
          each_row<M>([&](int i, int h, int) {
            const Real e = c[i][q][2 * h + x];
            u[2 * q + x] += a.first ? exp2_fast((e - top[i][h]) + row[i][h]) : e * w[i][h];
          });
        });
        sums.add(u, a.partial, to + tile * kTile<F>, stripe == at().first_stripe);
      }
    }
    finish_stripe(grid, stripe + 1 < at().last_stripe);
  }
}

}  // namespace

template <class F>
StripePlan plan_sweep(const AttentionShape& s, const Packed<F>& q, const Packed<F>& k) {
  using Real = typename F::Value;
  return choose_stripes({.matrices = s.matrices(),
                         .rows = s.n,
                         .columns = s.m,
                         .row_tiles = kRowTiles<F>,
                         .tile = kTile<F>,
                         .real = sizeof(Real),
                         .bytes_per_row = tile_stride(q.used) * sizeof(typename F::Cell) + 2 * sizeof(Real),
                         .bytes = TileRing<F>::bytes(2, tile_stride(k.panel(0)), 2) + ColumnSums<F>::bytes(kStripeThreads),
                         .keep = true});
}

template <class F>
void launch_sweep(const StripePlan& plan, const Sweep<F>& a) {
  launch(KERNEL(attention_sweep<F>), plan.launch, plan.grid, a);
}

template StripePlan plan_sweep(const AttentionShape&, const Packed<Full<float>>&, const Packed<Full<float>>&);
template void launch_sweep(const StripePlan&, const Sweep<Full<float>>&);
template StripePlan plan_sweep(const AttentionShape&, const Packed<Full<double>>&, const Packed<Full<double>>&);
template void launch_sweep(const StripePlan&, const Sweep<Full<double>>&);
template StripePlan plan_sweep(const AttentionShape&, const Packed<Tf32>&, const Packed<Tf32>&);
template void launch_sweep(const StripePlan&, const Sweep<Tf32>&);
template StripePlan plan_sweep(const AttentionShape&, const Packed<Bf16>&, const Packed<Bf16>&);
template void launch_sweep(const StripePlan&, const Sweep<Bf16>&);

}  // namespace sinkgrad::cuda::streaming
