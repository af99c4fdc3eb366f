// Streaming Sinkhorn attention, forward: l half-steps take l / 2 sweeps (a row step fused with the column sums of the next column step)
// and a last pass that multiplies with V, each one product Q K^T where the scores of a stripe stay on chip (up to about 4000 keys shared by a
// cluster of sm_90), else two. No n x m matrix in memory, no synchronisation with the host: a fixed sequence of launches, in which
// matrices that have stopped return at once.
#include <algorithm>

#include "cuda/attention_streaming.h"

namespace sinkgrad::cuda {
namespace streaming {

StripePlan choose_stripes(const StripeNeeds& needs) {
  const size_t limit = shared_limit(), roomy = limit / 2 - 1024;  // two blocks on a multiprocessor
  StripePlan plan;
  StripeGrid& g = plan.grid;
  size_t fixed = 0;
  auto count = [&] { return needs.matrices * g.stripes * g.chunks * g.cluster; };
  auto take = [&](int threads) {
    plan.launch.threads = threads;
    g.rows = threads / kWarp * 16 * needs.row_tiles;
    g.stripes = (needs.rows + g.rows - 1) / g.rows;
    fixed = needs.bytes + SharedStripeBlock::kBytes + needs.bytes_per_row * static_cast<size_t>(g.rows) + 256;
    return fixed + static_cast<size_t>(g.rows * needs.exchange) * needs.real <= limit;
  };
  g.chunks = needs.chunks;
  int threads = kStripeThreads;
  while (!take(threads)) {
    threads /= 2;
    require<DeviceError>(threads >= kWarp, "sinkhorn_attention: heads of this size do not fit the ", limit, " bytes of a multiprocessor");
  }
  // A few stripes alone would leave most multiprocessors without work: smaller ones, or clusters.
  while (!needs.keep && threads > kWarp && count() < multiprocessors()) take(threads /= 2);
  g.tiles = static_cast<int>((needs.columns + needs.tile - 1) / needs.tile);
  g.share = g.tiles;
  g.parts = g.stripes;
  if (needs.keep) {
    const size_t tile = static_cast<size_t>(g.rows * needs.tile) * needs.real;
    auto fit = [&](size_t bytes) { return bytes > fixed ? static_cast<int>((bytes - fixed) / tile) : 0; };
    auto share = [&](int cluster) { return (g.tiles + cluster - 1) / cluster; };
    const int most = architecture() >= 90 ? 8 : 1;
    // The smallest cluster whose blocks keep everything, with room for a second block if possible; else most of it, or what there is room for.
    auto smallest = [&](size_t bytes) {
      for (int c = 1; c <= most; c *= 2)
        if (share(c) <= fit(bytes)) return c;
      return 0;
    };
    size_t bytes = roomy;
    g.cluster = smallest(roomy);
    if (g.cluster == 0) g.cluster = smallest(bytes = limit);
    if (g.cluster == 0) {
      const bool worth = most > 1 && 2 * fit(limit) >= share(most);
      g.cluster = worth ? most : 1;
      bytes = worth ? limit : roomy;
    }
    while (g.cluster < most && 2 * g.cluster <= g.tiles && 2 * count() <= multiprocessors()) g.cluster *= 2;
    g.share = share(g.cluster);
    g.kept = std::min(g.share, fit(bytes));
    g.space = g.kept * g.rows * needs.tile;
    if (g.cluster > 1) g.space = std::max(g.space, g.rows * needs.exchange);
    // Column sums take memory per part: parts are as many as keep the device busy evenly, so that the memory grows with m alone.
    const int64_t busy = int64_t{8} * multiprocessors() * (bytes == roomy ? 2 : 1);
    g.per_part = std::max<int64_t>(1, std::min(g.stripes, count() / busy));
    g.parts = (g.stripes + g.per_part - 1) / g.per_part;
  }
  plan.launch.blocks = needs.matrices * g.parts * g.chunks * g.cluster;
  plan.launch.shared_bytes = fixed + static_cast<size_t>(g.space) * needs.real;
  plan.launch.cluster = g.cluster;
  return plan;
}

namespace {

template <class F>
void forward(const AttentionShape& s, const Forward& f) {
  using Real = typename F::Value;
  Scratch scratch;
  const AttentionMasksView masks(f.in);
  const ValidLines valid(scratch, s, masks);
  PackJobs<F, Real> jobs;
  const auto q = jobs.add(scratch, s, {span<const Real>(f.in[0]), s.n, s.d, valid.rows, s.scale * kLog2E});
  const auto k = jobs.add(scratch, s, {span<const Real>(f.in[1]), s.m, s.d, valid.columns});
  const auto v = jobs.add(scratch, s, {span<const Real>(f.in[2]), s.m, s.e, valid.columns}, std::max<int64_t>(s.e, 1));
  jobs.run(s);
  const RowState<Real> rows{.max = scratch.take<Real>(s.matrices() * padded(s.n)),
                            .potential = scratch.take<Real>(s.matrices() * padded(s.n)),
                            .kept = span<Real>(f.saved[0]),
                            .kept_max = span<Real>(f.saved[3]),
                            .n = s.n,
                            .steps = s.row_steps()};
  const ColumnState<Real> columns(scratch, s, valid, rows.potential);
  const StripePlan sweeps = plan_sweep(s, q, k), last = plan_output(s, q, k, static_cast<bool>(masks.pairs));
  const Span<Real> partial = scratch.take<Real>(s.matrices() * std::max(sweeps.grid.parts, last.grid.parts) * padded(s.m));

  for (int64_t step = 0; step < s.column_steps(); ++step) {
    launch_sweep(sweeps, Sweep<F>{.shape = s,
                                  .masks = masks,
                                  .active = columns.running,
                                  .q = q,
                                  .k = k,
                                  .rows = rows,
                                  .column = columns.column,
                                  .first = step == 0,
                                  .step = step,
                                  .partial = partial});
    columns.step(partial, sweeps.grid.parts, span<Real>(f.saved[1]), step);
    if (step == 0) add_columns_safely(s, q, k, rows, columns, span<Real>(f.saved[1]));
  }
  const int64_t parts = last.grid.parts * last.grid.cluster;
  const Span<Real> extremes = scratch.take<Real>(s.matrices() * parts * 2);
  launch_output(last, Output<F>{.shape = s,
                                .masks = masks,
                                .valid = valid,
                                .taken = columns.taken,
                                .q = q,
                                .k = k,
                                .v = v,
                                .rows = rows,
                                .column = columns.column,
                                .first = s.iterations == 1,
                                .partial = partial,
                                .extremes = extremes,
                                .out = span<Real>(f.out),
                                .plan = s.expose_plan ? span<Real>(f.saved[4]) : Span<Real>{}});
  columns.measure(partial, last.grid.parts, extremes, parts, span<Real>(f.saved[2]));
}

}  // namespace
}  // namespace streaming

template <class T>
void streaming_attention_forward(const AttentionShape& s, const Forward& f) {
  if (s.matrices() == 0) return;
  streaming::with_format<T>(f.precision, [&]<class F>() { streaming::forward<F>(s, f); });
}

template void streaming_attention_forward<float>(const AttentionShape&, const Forward&);
template void streaming_attention_forward<double>(const AttentionShape&, const Forward&);

}  // namespace sinkgrad::cuda
