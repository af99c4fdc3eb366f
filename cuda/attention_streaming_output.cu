// The last pass of streaming Sinkhorn attention: the row step that ends it, O = P V, the column sums of P for the statistics, P itself
// where it is wanted. Scores are computed before the row sums are complete and, unless they stay on chip, once more after.
// Reads Q once and K and V once per stripe (K twice where scores are not kept), writes O.
#include "cuda/attention_streaming.h"

namespace sinkgrad::cuda::streaming {
namespace {

/// Reals between rows of an output in shared memory.
template <int O>
constexpr int kOutputStride = 32 * O + 4;

/// Two row tiles leave no registers for a wide output or for a mask of pairs.
template <class F, int O>
constexpr bool kTwoRowTiles = kRowTiles<F> == 2 && O <= 2;
template <class F, int O>
int output_row_tiles(bool pairs) {
  return kTwoRowTiles<F, O> && !pairs ? 2 : 1;
}
template <class F, int O, int M>
constexpr int kOutputBlocks = !kDouble<F> && O * M == 1 ? 3 : 2;  ///< on a multiprocessor
template <class F, int O>
int output_ring_stride(const Packed<F>& k) {
  return tile_stride(k.panel(0) > 16 * O ? k.panel(0) : 16 * O);
}

template <class F, int M, int Q>
__device__ void write_plan(const Output<F>& a, const typename F::Value (&p)[M][Q][4], int64_t matrix, int64_t first_row, int64_t first_column,
                           typename F::Value scale) {
  each_column<Q>([&](int q, int x, int j) {
    each_row<M>([&](int i, int h, int r) {
      if (first_row + r < a.shape.n && first_column + j < a.shape.m)
        a.plan[(matrix * a.shape.n + first_row + r) * a.shape.m + first_column + j] = p[i][q][2 * h + x] * scale;
    });
  });
}

template <class F, int O, int M>
__global__ void __launch_bounds__(kStripeThreads, kOutputBlocks<F, O, M>) attention_output(StripeGrid grid, Output<F> a, int ring_stride) {
  using Real = typename F::Value;
  constexpr bool kMasks = M == 1;  // see output_row_tiles()
  constexpr int Q = kTile<F> / 8;
  SharedMemory memory;
  const SharedStripeBlock at(memory, grid);
  const int64_t column_base = at().matrix * a.k.rows + at().first_tile * kTile<F>, batch = at().matrix / a.shape.heads;
  const int panels = a.k.panels(), taken = a.taken[at().matrix];
  const bool normalise = taken % 2 == 1;
  const Real scale = a.valid.template output_scale<Real>(a.shape, at().matrix);

  const Tile<F> own{memory.take<typename F::Cell>(grid.rows * tile_stride(a.q.used)), tile_stride(a.q.used)};
  TileRing<F> ring(memory, 2, ring_stride, 1);
  ColumnSums<F> sums(memory);
  const Shared<Real> shares = memory.take<Real>(2 * grid.rows), extremes = memory.take<Real>(2 * kStripeThreads / kWarp);
  const Shared<Real> space = memory.take<Real>(grid.space);
  const KeptTiles<Real> kept{space};

  // The tiles of K; then for each tile its rows of V, and before those K again if the scores were not kept.
  auto issue = [&](int item, int slot) {
    int tile = item / panels, part = item % panels;
    if (item >= at().tiles * panels) {
      const int again = item - at().tiles * panels - at().kept;
      tile = again < 0 ? again + at().kept : at().kept + again / (panels + 1);
      part = again < 0 ? panels : again % (panels + 1);
    }
    const int64_t row = (at().first_tile + tile) * kTile<F>;
    if (part == panels) {
      copy_rows(ring.rows(slot), a.v, at().matrix, row, kTile<F>, at().chunk * 16 * O, 16 * O);
      return;
    }
    copy_rows(ring.rows(slot), a.k, at().matrix, row, kTile<F>, part * kPanelCells<F>, a.k.panel(part));
    if (part == panels - 1) ring.copy_vector(slot, 0, a.column, column_base + tile * kTile<F>);
  };

  Real largest = 0, row_error = 0;
  for (int64_t stripe = at().first_stripe; stripe < at().last_stripe; ++stripe) {
    const int64_t first_row = stripe * grid.rows, row_base = at().matrix * a.q.rows + first_row;
    if (at().tiles > 0) copy_rows(own, a.q, at().matrix, first_row, grid.rows, 0, a.q.used);
    ring.start(at().tiles * panels + at().kept + (at().tiles - at().kept) * (panels + 1), issue);

    Real top[M][2], row[M][2];
    PowerSum<Real> total[M][2];
    each_row<M>([&](int i, int h, int r) {
      row[i][h] = a.rows.potential[row_base + r];
      top[i][h] = a.first ? Real(0) : static_cast<Real>(a.rows.max[row_base + r]);
      if (!a.first) total[i][h].max = 0;
    });

    Real c[M][Q][4];
    auto next_tile = [&](int tile) {
      const HiddenPairs<M, Q> hidden(kMasks ? a.masks : AttentionMasksView(), a.shape, batch, first_row, (at().first_tile + tile) * kTile<F>, false);
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
    };

    for (int tile = 0; tile < at().tiles; ++tile) {
      next_tile(tile);
      each_row<M>([&](int i, int h, int) {
        if (a.first)
          total[i][h].add_powers(c[i], h);
        else
          each_column<Q>([&](int q, int x, int) { total[i][h].sum += c[i][q][2 * h + x]; });
      });
      if (tile < at().kept) kept.store(tile, c);
    }

    complete_rows<M>(total, grid, shares);
    Real w[M][2];
    each_row<M>([&](int i, int h, int r) {
      const bool writes = at().rank == 0 && at().chunk == 0 && lane_in_group() == 0;
      w[i][h] = 1;
      if (normalise) {
        const NewRow<Real> f(total[i][h], a.first, top[i][h], row[i][h]);
        w[i][h] = f.weight;  // of powers of the old potential; those of the first step are only taken now
        if (a.first) {
          top[i][h] = f.max;
          row[i][h] = f.row;
        }
        if (writes) a.rows.keep(f, a.first, at().matrix, (taken - 1) / 2, first_row + r);
      } else if (total[i][h].sum > 0) {
        row_error = maximum<Real>(row_error, fabs(total[i][h].sum - 1));
      }
      if (writes && a.row_sums) a.row_sums[row_base + r] = total[i][h].sum;
    });

    const int64_t sums_to = (at().matrix * grid.parts + at().part) * a.k.rows + at().first_tile * kTile<F>;
    Real o[M][O][4][4];
    clear(o);
    for (int tile = 0; tile < at().tiles; ++tile) {
      if (tile < at().kept)
        kept.load(tile, c);
      else
        next_tile(tile);
      Real u[2 * Q];
      each_column<Q>([&](int q, int x, int) {
        u[2 * q + x] = 0;
        each_row<M>([&](int i, int h, int) {
          Real& p = c[i][q][2 * h + x];
          p = a.first ? exp2_fast((p - top[i][h]) + row[i][h]) : p * w[i][h];
          u[2 * q + x] += p;
          largest = maximum<Real>(largest, p);
        });
      });
      if (at().chunk == 0) {
        if (a.plan) write_plan(a, c, at().matrix, first_row, (at().first_tile + tile) * kTile<F>, scale);
        sums.add(u, a.partial, sums_to + tile * kTile<F>, stripe == at().first_stripe);
      }
      multiply_columns(o, c, ring.rows(ring.next(issue)));
    }

    const int64_t to = a.shape.o_at(batch, at().matrix % a.shape.heads, 0), next_row = a.shape.heads * a.shape.e;
    auto put = [&](int r, int column, Real v) {
      const int64_t i = first_row + r, j = at().chunk * 32 * O + column;
      if (i < a.shape.n && j < a.shape.e) a.out[to + i * next_row + j] = v * scale;
    };
    if (grid.cluster == 1) {
      each_output(o, put);
    } else {
      // Each block has the part of its keys; rows are shared out among the blocks. Nobody reads kept scores any more.
      each_output(o, [&](int r, int column, Real v) { space[r * kOutputStride<O> + column] = v; });
      cluster_sync();
      for (int k = at().rank * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); k < grid.rows * 32 * O;
           k += grid.cluster * static_cast<int>(blockDim.x)) {
        Real v = 0;
        for (int rank = 0; rank < grid.cluster; ++rank) v += cluster_peer(space, rank)[k / (32 * O) * kOutputStride<O> + k % (32 * O)];
        put(k / (32 * O), k % (32 * O), v);
      }
    }
    finish_stripe(grid, stripe + 1 < at().last_stripe);
  }

  if (at().chunk != 0) return;
  largest = warp_reduce(largest, Max{});
  row_error = warp_reduce(row_error, Max{});
  if (lane_index() == 0) {
    extremes[2 * warp_index()] = largest;
    extremes[2 * warp_index() + 1] = row_error;
  }
  block_sync();
  if (threadIdx.x < 2) {
    Real v = extremes[threadIdx.x];
    for (int k = 1; k < warps_per_block(); ++k) v = Max{}(v, static_cast<Real>(extremes[2 * k + static_cast<int>(threadIdx.x)]));
    a.extremes[((at().matrix * grid.parts + at().part) * grid.cluster + at().rank) * 2 + threadIdx.x] = v;
  }
}

}  // namespace

template <class F>
StripePlan plan_output(const AttentionShape& s, const Packed<F>& q, const Packed<F>& k, bool pairs) {
  StripePlan plan;
  with_output_width<F>(s.e, [&]<int O>() {
    using Real = typename F::Value;
    plan = choose_stripes({.matrices = s.matrices(),
                           .rows = s.n,
                           .columns = s.m,
                           .row_tiles = output_row_tiles<F, O>(pairs),
                           .tile = kTile<F>,
                           .real = sizeof(Real),
                           .chunks = s.e > 0 ? static_cast<int>((s.e + 32 * O - 1) / (32 * O)) : 1,
                           .bytes_per_row = tile_stride(q.used) * sizeof(typename F::Cell) + 2 * sizeof(Real),
                           .bytes = TileRing<F>::bytes(2, output_ring_stride<F, O>(k), 1) + ColumnSums<F>::bytes(kStripeThreads) + 64,
                           .keep = true,
                           .exchange = kOutputStride<O>});
  });
  return plan;
}

template <class F>
void launch_output(const StripePlan& plan, const Output<F>& a) {
  with_output_width<F>(a.shape.e, [&]<int O>() {
    auto run = [&]<int M>() { launch(KERNEL(attention_output<F, O, M>), plan.launch, plan.grid, a, output_ring_stride<F, O>(a.k)); };
    if constexpr (kTwoRowTiles<F, O>)
      if (!a.masks.pairs) return run.template operator()<2>();
    run.template operator()<1>();
  });
}

template StripePlan plan_output(const AttentionShape&, const Packed<Full<float>>&, const Packed<Full<float>>&, bool);
template void launch_output(const StripePlan&, const Output<Full<float>>&);
template StripePlan plan_output(const AttentionShape&, const Packed<Full<double>>&, const Packed<Full<double>>&, bool);
template void launch_output(const StripePlan&, const Output<Full<double>>&);
template StripePlan plan_output(const AttentionShape&, const Packed<Tf32>&, const Packed<Tf32>&, bool);
template void launch_output(const StripePlan&, const Output<Tf32>&);
template StripePlan plan_output(const AttentionShape&, const Packed<Bf16>&, const Packed<Bf16>&, bool);
template void launch_output(const StripePlan&, const Output<Bf16>&);

}  // namespace sinkgrad::cuda::streaming
