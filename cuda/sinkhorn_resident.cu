// Sinkhorn with the matrix on chip: a block, or on sm_90 a cluster of up to 8 blocks that share its rows, holds x in shared memory.
// Forward: one read of the scores, one write of the plan. Backward: one read of scores and two of dy (the second from cache), one
// write. A pair of half-steps costs one exponential per score forward, four backward.
#include "cuda/sinkhorn_residence.h"
#include "cuda/sinkhorn_reverse.h"

namespace sinkgrad::cuda {
namespace {

/// As many threads as have registers for their K elements of a row.
template <class T, int K>
constexpr int kMostThreads = sizeof(T) == 4 && K == 8 ? 512 : 256;

/// A block's shared memory.
template <class T, class Team>
struct Workplace {
  __device__ Workplace(const SinkhornCall<T>& call, int rows, int pitch) {
    SharedMemory memory;
    const int m = static_cast<int>(call.m);
    held = memory.take<T>(rows * pitch);
    partial = {memory.take<T>(Team::count() * m), memory.take<T>(Team::count() * m)};
    stripe = {memory.take<T>(m), memory.take<T>(m)};
  }
  Shared<T> held;                          ///< (rows, pitch)
  ColumnStore<Shared<T>> partial, stripe;  ///< (teams, m), (m)
};
template <class T, int lanes, int K>
bool find_residence(const SinkhornCall<T>& call, Residence& r) {
  return find_residence<T, lanes>(
      call, kMostThreads<T, K>, [&](int teams) { return 2 * shared_bytes<T>(teams * call.m) + 2 * shared_bytes<T>(call.m); }, r);
}

/// Calls body(j, sum over the matrix) for every column, by one thread of the cluster. All blocks must meet after it.
template <class Team, int K, class T, class A, class Body>
__device__ void combine_blocks(const Columns<T, A, K>& sums, const Workplace<T, Team>& place, int64_t m, Body body) {
  const bool alone = cluster_size() == 1;
  combine_teams<Team>(sums, place.partial, m, [&](int j, const A& s) {
    if (alone)
      body(j, s);
    else
      place.stripe.put(j, s);
  });
  if (alone) return;
  cluster_sync();
  each_own_column(m, [&](int64_t column) {
    const int j = static_cast<int>(column);
    auto of = [&](int block) {
      return ColumnStore<Shared<T>>{cluster_peer(place.stripe.sum, block), cluster_peer(place.stripe.max, block)}.template get<A>(j);
    };
    A s = of(0);
    for (int block = 1; block < cluster_size(); ++block) s = merge(s, of(block));
    body(j, s);
  });
}

/// What is known of a plan with row sums 1.
struct Summary {
  double column_error = 0, row_error = 0, largest = 0;
};
struct Worst {
  __device__ Summary operator()(const Summary& a, const Summary& b) const {
    return {Max{}(a.column_error, b.column_error), Max{}(a.row_error, b.row_error), Max{}(a.largest, b.largest)};
  }
};

template <class T, int lanes, int K>
__global__ void __launch_bounds__(kMostThreads<T, K>, sizeof(T) == 4 && K == 4 ? 3 : 1)
    resident_forward(SinkhornCall<T> call, Span<T> plan, int rows_per_block, int pitch) {
  using Team = RowTeam<lanes>;
  STATIC_SHARED(T, scratch, kWarp);
  STATIC_SHARED(int, counts, kWarp);
  STATIC_SHARED(Summary, summaries, kWarp);
  STATIC_SHARED(Summary, slots, kMostBlocks);
  const Workplace<T, Team> place(call, rows_per_block, pitch);
  const ResidentRows<T> rows = resident_rows(call, place.held, rows_per_block, pitch);
  const int64_t matrix = matrix_of_block(), m = call.m;
  const Span<T> y = plan.part(matrix * call.n * m, call.n * m);
  const Marginals<T> target = marginals(call, rows.scores, counts);
  Extremes<T> extremes;
  Summary summary;

  int64_t k = 0;  // the last row step; column step k is computed with it, unless the plan is
  bool done = call.iterations == 1;
  auto finish_column = [&](int j, const auto& s) {
    summary.column_error = Max{}(summary.column_error, column_error(mass(s), target));
    if (!done) call.column_potentials(matrix, k)[j] = column_potential(s, potential(call.column_potentials(matrix, k - 1), j), target.column_target);
  };
  {
    Columns<T, LogSum<T>, K> sums;
    const ForwardStep<T> step{{}, {}, call.row_potentials(matrix, 0), done ? y : Span<T>{}, target.output_scale};
    forward_sweep<true, Team>(rows, m, step, sums, extremes, scratch);
    combine_blocks(sums, place, m, finish_column);
  }
  int64_t taken = 1;
  while (!done) {
    bool stops = false;
    if (call.tolerance > 0)
      stops = cluster_reduce(summary, Worst{}, summaries, slots).column_error <= call.tolerance;
    else
      all_blocks_sync();
    summary.column_error = 0;
    const bool row_step = !stops && taken + 1 < call.iterations;
    ForwardStep<T> step{call.row_potentials(matrix, k), call.column_potentials(matrix, stops ? k - 1 : k), {}, {}, target.output_scale};
    if (row_step) step.f = call.row_potentials(matrix, ++k);
    taken += stops ? 0 : row_step ? 2 : 1;
    done = !row_step || taken == call.iterations;
    if (done) step.plan = y;
    Columns<T, T, K> sums;
    forward_sweep<false, Team>(rows, m, step, sums, extremes, scratch);
    combine_blocks(sums, place, m, finish_column);
  }
  summary.row_error = static_cast<double>(extremes.row_error);
  summary.largest = static_cast<double>(extremes.largest);
  summary = cluster_reduce(summary, Worst{}, summaries, slots);
  if (cluster_rank() == 0 && threadIdx.x == 0) {
    const Span<T> stats = call.stats.part(matrix * kSinkhornStats, kSinkhornStats);
    stats[0] = static_cast<T>(taken);
    stats[1] = static_cast<T>(taken % 2 == 1 ? summary.column_error : summary.row_error);
    stats[2] = static_cast<T>(summary.largest);
    stats[3] = T(0);
  }
}

template <class T, int lanes, int K>
__global__ void __launch_bounds__(kMostThreads<T, K>, sizeof(T) == 4 && K == 4 ? 2 : 1)
    resident_backward(SinkhornCall<T> call, Span<T> df, Span<T> c, Span<const T> dy, GradSpan<T> dx, int rows_per_block, int pitch) {
  using Team = RowTeam<lanes>;
  STATIC_SHARED(T, scratch, kWarp);
  STATIC_SHARED(int, counts, kWarp);
  const Workplace<T, Team> place(call, rows_per_block, pitch);
  const ResidentRows<T> rows = resident_rows(call, place.held, rows_per_block, pitch);
  const int64_t matrix = matrix_of_block(), dx_begin = matrix * call.n * call.m;
  const Marginals<T> target = marginals(call, rows.scores, counts);
  const Reverse<T> r(call, matrix, df, c, dy, target.output_scale);
  if (!r.unrolled || r.pairs() == 0) {
    reverse_end<true, Team, K>(rows, r, dx, dx_begin, scratch);
    return;
  }
  Columns<T, T, K> sums;
  reverse_begin<Team>(rows, r, sums, scratch);
  for (int64_t pair = r.pairs() - 1;; --pair) {
    // The first sums are those of dg, later ones those of what is subtracted from 0.
    const T inverse = (pair == r.pairs() - 1 ? T(1) : T(-1)) / target.column_target;
    combine_blocks(sums, place, r.m, [&](int j, T s) { r.c_of(pair)[j] = s * inverse; });
    all_blocks_sync();
    if (pair == 0) break;
    reverse_pair<Team>(rows, r, pair, sums, scratch);
  }
  reverse_end<false, Team, K>(rows, r, dx, dx_begin, scratch);
}

}  // namespace

template <class T>
bool resident_sinkhorn_forward(const SinkhornCall<T>& call, Span<T> plan) {
  return with_resident_team<T>(call.m, [&]<int lanes, int K>() {
    Residence r;
    if (!find_residence<T, lanes, K>(call, r)) return false;
    launch(KERNEL(resident_forward<T, lanes, K>), r.launch, call, plan, r.rows, r.pitch);
    return true;
  });
}

template <class T>
bool resident_sinkhorn_backward(const SinkhornCall<T>& call, Span<const T> dy, GradSpan<T> dx) {
  return with_resident_team<T>(call.m, [&]<int lanes, int K>() {
    Residence r;
    if (!find_residence<T, lanes, K>(call, r)) return false;
    Scratch scratch;
    Span<T> df, c;
    if (call.gradient == SinkhornGradient::unrolled && call.column_steps() > 0) {
      df = scratch.take<T>(call.count * call.column_steps() * call.n);
      c = scratch.take<T>(call.count * call.column_steps() * call.m);
    }
    launch(KERNEL(resident_backward<T, lanes, K>), r.launch, call, df, c, dy, dx, r.rows, r.pitch);
    return true;
  });
}

template bool resident_sinkhorn_forward(const SinkhornCall<float>&, Span<float>);
template bool resident_sinkhorn_forward(const SinkhornCall<double>&, Span<double>);
template bool resident_sinkhorn_backward(const SinkhornCall<float>&, Span<const float>, GradSpan<float>);
template bool resident_sinkhorn_backward(const SinkhornCall<double>&, Span<const double>, GradSpan<double>);

}  // namespace sinkgrad::cuda
