// The first column sums in the log domain, for matrices in which one underflows: blocks own keys, queries stream past, a running maximum
// per key. Other matrices return at once. Later sums cannot underflow: they are bounded relative to a plan with row sums 1.
#include "cuda/attention_streaming.h"

namespace sinkgrad::cuda::streaming {
namespace {

template <class F>
__global__ void __launch_bounds__(kStripeThreads, 2)
    attention_safe_columns(StripeGrid grid, Packed<F> q, Packed<F> k, RowState<typename F::Value> rows, ColumnState<typename F::Value> columns,
                           Span<typename F::Value> kept) {
  using Real = typename F::Value;
  constexpr int M = kRowTiles<F>, Q = kTile<F> / 8;
  SharedMemory memory;
  const SharedStripeBlock at(memory, grid);
  const int64_t first_row = at().first_stripe * grid.rows;
  bool unsafe = false;
  for (int64_t chunk = 0; chunk < columns.chunks; ++chunk) unsafe = unsafe || columns.underflows[at().matrix * columns.chunks + chunk] != 0;
  if (!unsafe || columns.running[at().matrix] == 0) return;
  const int panels = q.panels();

  const Tile<F> own{memory.take<typename F::Cell>(grid.rows * tile_stride(k.used)), tile_stride(k.used)};
  TileRing<F> ring(memory, 2, tile_stride(q.panel(0)), 2);
  auto issue = [&](int item, int slot) {
    const int tile = item / panels, part = item % panels;
    copy_rows(ring.rows(slot), q, at().matrix, tile * kTile<F>, kTile<F>, part * kPanelCells<F>, q.panel(part));
    if (part < panels - 1) return;
    ring.copy_vector(slot, 0, rows.max, at().matrix * q.rows + tile * kTile<F>);
    ring.copy_vector(slot, 1, rows.potential, at().matrix * q.rows + tile * kTile<F>);
  };
  if (at().tiles > 0) copy_rows(own, k, at().matrix, first_row, grid.rows, 0, k.used);
  ring.start(at().tiles * panels, issue);

  PowerSum<Real> total[M][2];
  for (int tile = 0; tile < at().tiles; ++tile) {
    Real c[M][Q][4];
    clear(c);
    int slot = 0;
    for (int part = 0; part < panels; ++part) {
      slot = ring.next(issue);
      multiply_rows(c, own, warp_row<M>(), part * kPanelCells<F>, ring.rows(slot), q.panel(part));
    }
    each_column<Q>([&](int t, int x, int j) {
      const Real max = ring.value(slot, 0, j), row = ring.value(slot, 1, j);
      each_row<M>([&](int i, int h, int) { c[i][t][2 * h + x] = (c[i][t][2 * h + x] - max) + row; });
    });
    each_row<M>([&](int i, int h, int) { total[i][h].add_powers(c[i], h); });
  }
  complete_rows<M>(total, grid, Shared<Real>{});
  each_row<M>([&](int i, int h, int r) {
    const int64_t j = first_row + r;
    if (lane_in_group() == 0 && j < columns.shape.m) columns.update(at().matrix, j, Real(0), total[i][h].max + log2(total[i][h].sum), kept, 0);
  });
}

}  // namespace

template <class F>
void add_columns_safely(const AttentionShape& s, const Packed<F>& q, const Packed<F>& k, const RowState<typename F::Value>& rows,
                        const ColumnState<typename F::Value>& columns, Span<typename F::Value> kept) {
  const StripePlan plan = choose_stripes({.matrices = s.matrices(),
                                          .rows = s.m,
                                          .columns = s.n,
                                          .row_tiles = kRowTiles<F>,
                                          .tile = kTile<F>,
                                          .bytes_per_row = tile_stride(k.used) * sizeof(typename F::Cell),
                                          .bytes = TileRing<F>::bytes(2, tile_stride(q.panel(0)), 2)});
  launch(KERNEL(attention_safe_columns<F>), plan.launch, plan.grid, q, k, rows, columns, kept);
}

template void add_columns_safely(const AttentionShape&, const Packed<Full<float>>&, const Packed<Full<float>>&, const RowState<float>&,
                                 const ColumnState<float>&, Span<float>);
template void add_columns_safely(const AttentionShape&, const Packed<Full<double>>&, const Packed<Full<double>>&, const RowState<double>&,
                                 const ColumnState<double>&, Span<double>);
template void add_columns_safely(const AttentionShape&, const Packed<Tf32>&, const Packed<Tf32>&, const RowState<float>&, const ColumnState<float>&,
                                 Span<float>);
template void add_columns_safely(const AttentionShape&, const Packed<Bf16>&, const Packed<Bf16>&, const RowState<float>&, const ColumnState<float>&,
                                 Span<float>);

}  // namespace sinkgrad::cuda::streaming
