// Streaming Sinkhorn attention, backward, from potentials alone: two products for dV, one or two per pair of half-steps, three for dQ and three
// for dK. Gradients at a fixed point are in attention_streaming_implicit.cu.
#include <algorithm>

#include "cuda/attention_streaming_backward.h"

namespace sinkgrad::cuda {
namespace streaming {

template <class F, class T>
BackwardOperands<F, T>::BackwardOperands(Scratch& scratch, const AttentionShape& s, const Backward& b, int64_t ranks)
    : masks(b.in), valid(scratch, s, masks), taken(load_taken(scratch, s, span<const T>(b.saved[2]))) {
  auto rows = [&] { return scratch.take<Real>(s.matrices() * padded(s.n)); };
  auto columns = [&] { return scratch.take<Real>(s.matrices() * padded(s.m)); };
  queries.max = rows();
  queries.potential = rows();
  keys.max = columns();
  keys.potential = columns();
  using Load = LoadLines<Real, T>;
  load_lines(s, taken,
             Load{.to = queries.max,
                  .from = span<const T>(b.saved[3]),
                  .lines = s.n,
                  .steps = 1,
                  .valid = valid.rows,
                  .which = KeptStep::only,
                  .excluded = 0},
             Load{.to = queries.potential,
                  .from = span<const T>(b.saved[0]),
                  .lines = s.n,
                  .steps = s.row_steps(),
                  .valid = valid.rows,
                  .which = KeptStep::last_row},
             Load{.to = keys.max, .lines = s.m, .valid = valid.columns, .excluded = 0},
             Load{.to = keys.potential,
                  .from = span<const T>(b.saved[1]),
                  .lines = s.m,
                  .steps = s.column_steps(),
                  .valid = valid.columns,
                  .which = KeptStep::last_pair});

  const int64_t more = rank_columns<F>(ranks);
  const auto divisors = s.rows_sum_to_inverse_count ? Span<const int32_t>(valid.counts) : Span<const int32_t>{};
  PackJobs<F, T> jobs;
  queries.x = jobs.add(scratch, s, {span<const T>(b.in[0]), s.n, s.d, valid.rows, s.scale * kLog2E}, s.d);
  queries.dx = jobs.add(scratch, s, {span<const T>(b.out_grad), s.n, s.e, valid.rows, 1, divisors}, std::max<int64_t>(s.e, 1), more);
  keys.x = jobs.add(scratch, s, {span<const T>(b.in[1]), s.m, s.d, valid.columns}, s.d);
  keys.dx = jobs.add(scratch, s, {span<const T>(b.in[2]), s.m, s.e, valid.columns}, std::max<int64_t>(s.e, 1), more);
  jobs.run(s);
  dv = scratch.take<Real>(s.batch * s.m * s.heads * s.e);
}

template <class F, class T>
void launch_gradients(const AttentionShape& s, const Backward& b, const BackwardOperands<F, T>& o, const Rounds<typename F::Value>& rounds) {
  using Real = typename F::Value;
  if (b.in_grad[0])
    launch_score_gradient(ScoreGradient<F, T>{.shape = s,
                                              .masks = o.masks,
                                              .own = o.queries,
                                              .streamed = o.keys,
                                              .factor = static_cast<Real>(s.scale),
                                              .out = span<T>(b.in_grad[0]),
                                              .rounds = rounds});
  if (b.in_grad[1])
    launch_score_gradient(ScoreGradient<F, T>{.shape = s,
                                              .masks = o.masks,
                                              .own = o.keys,
                                              .streamed = o.queries,
                                              .transposed = true,
                                              .factor = Real(kLn2),  // the packed queries hold scale log2(e)
                                              .out = span<T>(b.in_grad[1]),
                                              .rounds = rounds});
  if (b.in_grad[2]) add_gradient<Real, T>(o.dv, span<T>(b.in_grad[2]));
}

template void launch_gradients(const AttentionShape&, const Backward&, const BackwardOperands<Full<double>, float>&, const Rounds<double>&);
template struct BackwardOperands<Full<double>, float>;

namespace {

/// Walks the pairs of half-steps backwards: fills df and weight of every round.
template <class F, class Real>
void walk_back(Scratch& scratch, const AttentionShape& s, const Backward& b, const BackwardOperands<F, Real>& o, RoundState<Real>& state,
               Span<const Real> weighted, Span<int32_t> drifts) {
  const int64_t n = s.matrices() * padded(s.n), m = s.matrices() * padded(s.m);
  const Span<Real> h = scratch.take<Real>(m);
  multiply_lines(s, LineProducts<F, Real, Real>{
                        .to = h, .a = span<const Real>(b.in[2]), .b = o.dv, .less = weighted, .lines = s.m, .dims = s.e, .valid = o.valid.columns});
  state.h = h;
  state.row = scratch.take<Real>(n);
  state.column = scratch.take<Real>(m);
  state.active = scratch.take<int32_t>(s.matrices());
  const StripePlan plan = plan_sweep(s, o.queries.x, o.keys.x);
  const Span<Real> partial = scratch.take<Real>(m * plan.grid.parts);
  for (int64_t round = 0; round < state.rounds.count; ++round) {
    state.prepare(round, partial, plan.grid.parts);
    const bool last = round + 1 == state.rounds.count;  // the potential before the first row step is constant
    launch_sweep(plan, Sweep<F>{.shape = s,
                                .masks = {},
                                .active = state.active,
                                .q = o.queries.x,
                                .k = o.keys.x,
                                .rows = {.max = o.queries.max, .potential = state.row},
                                .column = state.column,
                                .weight = state.weight.part(round * m, m),
                                .rule = {.normalise = false,
                                         .x = round == 0 ? Span<const Real>(state.direct) : Span<const Real>{},
                                         .sign = -1,
                                         .w = state.df.part(round * n, n)},
                                .partial = last ? Span<Real>{} : partial});
  }
  find_drifts(scratch, s, state.rounds, drifts);
}

template <class F>
void backward(const AttentionShape& s, const Backward& b) {
  using Real = typename F::Value;
  const bool scores = b.in_grad[0] || b.in_grad[1], unrolled = s.gradient == SinkhornGradient::unrolled;
  const int64_t count = scores && unrolled ? s.column_steps() : 0, ranks = !scores ? 0 : unrolled ? s.iterations : 1;
  const int64_t n = s.matrices() * padded(s.n), m = s.matrices() * padded(s.m);

  Scratch scratch;
  const BackwardOperands<F, Real> o(scratch, s, b, ranks);
  const Span<Real> delta = scratch.take<Real>(n), direct = scratch.take<Real>(n), ranked = scratch.take<Real>(n), weighted = scratch.take<Real>(m);
  const Span<int32_t> drifts = scratch.take<int32_t>(s.matrices());
  const Span<Real> df = scratch.take<Real>(count * n), weight = scratch.take<Real>(count * m);
  RoundState<Real> state{.shape = s,
                         .valid = o.valid,
                         .rounds = {.count = count,
                                    .taken = o.taken,
                                    .drifts = drifts,
                                    .row = span<const Real>(b.saved[0]),
                                    .column = span<const Real>(b.saved[1]),
                                    .df = df,
                                    .weight = weight},
                         .df = df,
                         .weight = weight,
                         .direct = direct};
  multiply_lines(s, LineProducts<F, Real, Real>{.to = delta,
                                                .a = span<const Real>(b.out_grad),
                                                .b = span<const Real>(b.out),
                                                .lines = s.n,
                                                .dims = s.e,
                                                .valid = o.valid.rows,
                                                .taken = o.taken,
                                                .direct = direct,
                                                .ranked = ranked});
  if (b.in_grad[2] || count > 0)
    launch_value_gradient(
        ValueGradient<F>{.shape = s, .masks = o.masks, .queries = o.queries, .keys = o.keys, .weight = ranked, .weighted = weighted, .dv = o.dv});
  if (count > 0) walk_back<F, Real>(scratch, s, b, o, state, weighted, drifts);
  if (scores) {
    const RankColumns<Real> a{.shape = s, .kind = unrolled ? Ranks::unrolled : Ranks::frozen, .valid = o.valid, .rounds = state.rounds, .row = delta};
    append_ranks(o.queries.dx, o.keys.dx, ranks, a);
  }
  launch_gradients(s, b, o, count > 0 ? state.rounds : Rounds<Real>{});
}

}  // namespace
}  // namespace streaming

template <class T>
void streaming_attention_backward(const AttentionShape& s, const Backward& b) {
  if (s.matrices() == 0) return;
  if (s.gradient == SinkhornGradient::implicit)
    streaming::implicit_backward<T>(s, b);
  else
    streaming::with_format<T>(b.precision, [&]<class F>() { streaming::backward<F>(s, b); });
}

template void streaming_attention_backward<float>(const AttentionShape&, const Backward&);
template void streaming_attention_backward<double>(const AttentionShape&, const Backward&);

}  // namespace sinkgrad::cuda
