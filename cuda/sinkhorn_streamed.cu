// Sinkhorn on matrices that do not fit on chip: one launch per sweep over all matrices, each block a stripe of rows; column sums of
// stripes meet in scratch memory and are added in order by a second, small launch. A tolerance stops a matrix by a flag on the
// device. With l half-steps the scores are read ceil(l / 2) times forward (once more for an even l or a tolerance) and
// 1 + floor(l / 2) times backward; dy twice, once for l = 1; plan and gradient are written once.
#include "cuda/sinkhorn_reverse.h"

namespace sinkgrad::cuda {
namespace {

constexpr int kThreads = 256;
/// Of a backward sweep on each multiprocessor: floats make do with the registers that this leaves.
template <class T, int K>
constexpr int kLeastBlocks = sizeof(T) == 4 && K > 0 ? 2 : 1;
/// Of a forward sweep. Without a number the compiler spills to reach one of its own choice.
template <class T, int K, bool first>
constexpr int kForwardBlocks = sizeof(T) == 8    ? (K == 4 ? 3 : 2)
                               : K == 4          ? 6
                               : K == 0 || first ? 2
                                                 : 4;

/// Matrix i is cut into `count` stripes of `rows` rows: one block each. The grid is (matrices x stripes).
struct Stripes {
  int64_t count, rows;
};

/// Scratch of one call. Each stripe has a line of column sums.
template <class T>
struct StreamBuffers {
  StripeSums<T> partial;      ///< (matrices, stripes, m)
  Span<T> shifts;             ///< (matrices, n)
  Span<Marginals<T>> target;  ///< (matrices)
  __device__ StripeSums<T> line(int64_t block, int64_t m) const {
    return {partial.sum.part(block * m, m), partial.max ? partial.max.part(block * m, m) : partial.max};
  }
};
/// That of a forward.
template <class T>
struct ForwardBuffers : StreamBuffers<T> {
  Span<int32_t> taken;         ///< (matrices) half-steps after which a tolerance stopped it; 0: it goes on
  Span<double> errors;         ///< (matrices, column chunks)
  Span<Extremes<T>> extremes;  ///< (matrices, stripes)
};

template <class T>
__global__ void __launch_bounds__(kThreads) count_lines(SinkhornCall<T> call, Span<Marginals<T>> target, Span<int32_t> taken) {
  STATIC_SHARED(int, scratch, kWarp);
  for (int64_t matrix = blockIdx.x; matrix < call.count; matrix += gridDim.x) {
    const Marginals<T> t = marginals(call, call.matrix(matrix), scratch);
    if (threadIdx.x != 0) continue;
    target[matrix] = t;
    if (taken) taken[matrix] = 0;
  }
}

template <class T>
__device__ StreamedRows<T> rows_of_block(const SinkhornCall<T>& call, const StreamBuffers<T>& buffers, int64_t matrix, Stripes stripes) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) % stripes.count * stripes.rows, left = call.n - first;
  return {call.matrix(matrix), buffers.shifts ? buffers.shifts.part(matrix * call.n, call.n) : buffers.shifts, first,
          left < 0              ? 0
          : left < stripes.rows ? left
                                : stripes.rows};
}

/// Column sums of this block's stripe to its line.
template <class Team, int K, class T, class A>
__device__ void keep_stripe(const Columns<T, A, K>& sums, int64_t m, const StripeSums<T>& line) {
  ColumnStore<Shared<T>> partial;
  if constexpr (!Team::kIsBlock) {
    SharedMemory memory;
    const int size = Team::count() * static_cast<int>(m);
    partial = {memory.take<T>(size), memory.take<T>(size)};
  }
  combine_teams<Team>(sums, partial, m, [&](auto j, const A& s) { line.put(j, s); });
}

struct LargerExtremes {
  template <class T>
  __device__ Extremes<T> operator()(const Extremes<T>& a, const Extremes<T>& b) const {
    return {Max{}(a.largest, b.largest), Max{}(a.row_error, b.row_error)};
  }
};

/// Row step k and, where it is the last one, the plan. The first one (k = 0) keeps the row maxima.
template <class T, int lanes, int K, bool first>
__global__ void __launch_bounds__(kThreads, kForwardBlocks<T, K, first>)
    streamed_row_step(SinkhornCall<T> call, int64_t k, Span<T> plan, ForwardBuffers<T> buffers, Stripes stripes) {
  using Team = RowTeam<lanes>;
  STATIC_SHARED(T, scratch, kWarp);
  STATIC_SHARED(Extremes<T>, extremes_scratch, kWarp);
  const int64_t block = blockIdx.x, matrix = block / stripes.count, size = call.n * call.m;
  if (!first && buffers.taken[matrix] != 0) return;
  const StreamedRows<T> rows = rows_of_block(call, buffers, matrix, stripes);
  ForwardStep<T> step{{},
                      {},
                      call.row_potentials(matrix, k),
                      plan ? plan.part(matrix * size, size) : plan,
                      static_cast<Marginals<T>>(buffers.target[matrix]).output_scale};
  if (!first) {
    step.before = call.row_potentials(matrix, k - 1);
    step.g = call.column_potentials(matrix, k - 1);
  }
  Columns<T, std::conditional_t<first, LogSum<T>, T>, K> sums{{}, buffers.line(block, call.m)};
  Extremes<T> extremes;
  forward_sweep<first, Team>(rows, call.m, step, sums, extremes, scratch);
  keep_stripe<Team>(sums, call.m, buffers.line(block, call.m));
  if (!plan) return;
  extremes = block_reduce(extremes, LargerExtremes{}, extremes_scratch);
  if (threadIdx.x == 0) buffers.extremes[block] = extremes;
}

/// The plan of potentials, where the last row step could not know that it was the last.
template <class T, int lanes, int K>
__global__ void __launch_bounds__(kThreads, kForwardBlocks<T, K, false>)
    streamed_plan(SinkhornCall<T> call, Span<T> plan, ForwardBuffers<T> buffers, Stripes stripes) {
  using Team = RowTeam<lanes>;
  STATIC_SHARED(T, scratch, kWarp);
  STATIC_SHARED(Extremes<T>, extremes_scratch, kWarp);
  const int64_t block = blockIdx.x, matrix = block / stripes.count, size = call.n * call.m;
  const int32_t stopped = buffers.taken[matrix];
  const int64_t taken = stopped != 0 ? stopped : call.iterations;
  const StreamedRows<T> rows = rows_of_block(call, buffers, matrix, stripes);
  const ForwardStep<T> step{call.row_potentials(matrix, (taken - 1) / 2),
                            call.column_potentials(matrix, taken / 2 - 1),
                            {},
                            plan.part(matrix * size, size),
                            static_cast<Marginals<T>>(buffers.target[matrix]).output_scale};
  Columns<T, T, K> sums{{}, buffers.line(block, call.m)};
  Extremes<T> extremes;
  forward_sweep<false, Team>(rows, call.m, step, sums, extremes, scratch);
  keep_stripe<Team>(sums, call.m, buffers.line(block, call.m));
  extremes = block_reduce(extremes, LargerExtremes{}, extremes_scratch);
  if (threadIdx.x == 0) buffers.extremes[block] = extremes;
}

/// Columns of a block that adds up stripes: one per lane, each warp has a run of stripes.
struct ColumnChunk {
  __device__ explicit ColumnChunk(int64_t m) : chunks(count(m)), matrix(blockIdx.x / chunks), column(blockIdx.x % chunks * kWarp + lane_index()) {}
  static __device__ __host__ int64_t count(int64_t m) { return (m + kWarp - 1) / kWarp; }
  int64_t chunks, matrix, column;
};
/// The sum of a column over the stripes of its matrix, in the first warp. `parts` has an element per thread.
template <class A, class T>
__device__ A sum_of_stripes(const StripeSums<T>& partial, const ColumnChunk& at, int64_t m, Stripes stripes, const ColumnStore<Shared<T>>& parts) {
  const int64_t run = (stripes.count + warps_per_block() - 1) / warps_per_block(), begin = warp_index() * run, end = begin + run;
  A s = Columns<T, A, 0>::none();
  if (at.column < m)
    for (int64_t stripe = begin; stripe < end && stripe < stripes.count; ++stripe)
      s = merge(s, partial.template get<A>((at.matrix * stripes.count + stripe) * m + at.column));
  parts.put(static_cast<int>(threadIdx.x), s);
  block_sync();
  if (warp_index() == 0)
    for (int w = 1; w < warps_per_block(); ++w) s = merge(s, parts.template get<A>(w * kWarp + lane_index()));
  return s;
}

/// Column step k and the error of the columns before it; k < 0: the error only.
template <class T, class A>
__global__ void __launch_bounds__(kThreads) streamed_column_step(SinkhornCall<T> call, int64_t k, ForwardBuffers<T> buffers, Stripes stripes) {
  STATIC_SHARED(T, part_sums, kThreads);
  STATIC_SHARED(T, part_maxima, kThreads);
  const ColumnChunk at(call.m);
  if (k >= 0 && buffers.taken[at.matrix] != 0) return;
  const Marginals<T> target = buffers.target[at.matrix];
  const A s = sum_of_stripes<A>(buffers.partial, at, call.m, stripes, {part_sums, part_maxima});
  if (warp_index() > 0) return;
  double error = 0;
  if (at.column < call.m) {
    error = column_error(mass(s), target);
    const T before = potential(call.column_potentials(at.matrix, k - 1), at.column);
    if (k >= 0) call.column_potentials(at.matrix, k)[at.column] = column_potential(s, before, target.column_target);
  }
  error = warp_reduce(error, Max{});
  if (lane_index() == 0) buffers.errors[blockIdx.x] = error;
}

/// The largest error of a matrix, by a warp.
template <class T>
__device__ double worst_chunk(const ForwardBuffers<T>& buffers, int64_t matrix, int64_t m) {
  const int64_t chunks = ColumnChunk::count(m);
  double worst = 0;
  for (int64_t c = lane_index(); c < chunks; c += kWarp) worst = Max{}(worst, static_cast<double>(buffers.errors[matrix * chunks + c]));
  return warp_reduce(worst, Max{});
}

/// Stops the matrices that were within the tolerance before column step k; a warp has a matrix.
template <class T>
__global__ void __launch_bounds__(kThreads) stop_matrices(SinkhornCall<T> call, int64_t k, ForwardBuffers<T> buffers) {
  for (int64_t matrix = thread_index() / kWarp; matrix < call.count; matrix += thread_count() / kWarp) {
    const double worst = worst_chunk(buffers, matrix, call.m);
    if (lane_index() == 0 && buffers.taken[matrix] == 0 && worst <= call.tolerance) buffers.taken[matrix] = static_cast<int32_t>(2 * k + 1);
  }
}

/// What the forward tells of each matrix; a warp has a matrix.
template <class T>
__global__ void __launch_bounds__(kThreads) write_stats(SinkhornCall<T> call, ForwardBuffers<T> buffers, Stripes stripes) {
  for (int64_t matrix = thread_index() / kWarp; matrix < call.count; matrix += thread_count() / kWarp) {
    Extremes<T> extremes;
    for (int64_t stripe = lane_index(); stripe < stripes.count; stripe += kWarp)
      extremes = LargerExtremes{}(extremes, static_cast<Extremes<T>>(buffers.extremes[matrix * stripes.count + stripe]));
    extremes = warp_reduce(extremes, LargerExtremes{});
    const double worst = worst_chunk(buffers, matrix, call.m);
    if (lane_index() != 0) continue;
    const int32_t stopped = buffers.taken[matrix];
    const int64_t taken = stopped != 0 ? stopped : call.iterations;
    const Span<T> stats = call.stats.part(matrix * kSinkhornStats, kSinkhornStats);
    stats[0] = static_cast<T>(taken);
    stats[1] = taken % 2 == 1 ? static_cast<T>(worst) : extremes.row_error;
    stats[2] = extremes.largest;
    stats[3] = T(0);
  }
}

/// What the sweeps of a backward share.
template <class T>
struct BackwardBuffers : StreamBuffers<T> {
  Span<T> df, c;
  Span<const T> dy;
  __device__ Reverse<T> reverse(const SinkhornCall<T>& call, int64_t matrix) const {
    return {call, matrix, df, c, dy, static_cast<Marginals<T>>(this->target[matrix]).output_scale};
  }
};

/// The sweep that undoes pair k or, where it `begins`, the one before all pairs.
template <class T, int lanes, int K, bool begins>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<T, K>)
    streamed_undo(SinkhornCall<T> call, int64_t k, BackwardBuffers<T> buffers, Stripes stripes) {
  using Team = RowTeam<lanes>;
  STATIC_SHARED(T, scratch, kWarp);
  const int64_t block = blockIdx.x, matrix = block / stripes.count;
  const Reverse<T> r = buffers.reverse(call, matrix);
  if (!begins && k >= r.pairs()) return;  // a tolerance stopped it earlier
  const StreamedRows<T> rows = rows_of_block(call, buffers, matrix, stripes);
  Columns<T, T, K> sums{{}, buffers.line(block, call.m)};
  if constexpr (begins)
    reverse_begin<Team>(rows, r, sums, scratch);
  else
    reverse_pair<Team>(rows, r, k, sums, scratch);
  keep_stripe<Team>(sums, call.m, buffers.line(block, call.m));
}

/// c of the pair that follows: k - 1, or for k < 0 the last one.
template <class T>
__global__ void __launch_bounds__(kThreads) streamed_weights(SinkhornCall<T> call, int64_t k, BackwardBuffers<T> buffers, Stripes stripes) {
  STATIC_SHARED(T, part_sums, kThreads);
  const ColumnChunk at(call.m);
  const Reverse<T> r = buffers.reverse(call, at.matrix);
  if (k >= r.pairs() || r.pairs() == 0) return;
  const T sum = sum_of_stripes<T>(buffers.partial, at, call.m, stripes, {part_sums, {}});
  if (warp_index() > 0 || at.column >= call.m) return;
  const T inverse = (k < 0 ? T(1) : T(-1)) / static_cast<Marginals<T>>(buffers.target[at.matrix]).column_target;
  r.c_of(k < 0 ? r.pairs() - 1 : k - 1)[at.column] = sum * inverse;
}

template <class T, int lanes, int K, bool first>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<T, K>)
    streamed_gradient(SinkhornCall<T> call, GradSpan<T> dx, BackwardBuffers<T> buffers, Stripes stripes) {
  STATIC_SHARED(T, scratch, kWarp);
  const int64_t matrix = static_cast<int64_t>(blockIdx.x) / stripes.count;
  const StreamedRows<T> rows = rows_of_block(call, buffers, matrix, stripes);
  reverse_end<first, RowTeam<lanes>, K>(rows, buffers.reverse(call, matrix), dx, matrix * call.n * call.m, scratch);
}

/// Calls f.operator()<lanes, K>() with the team for rows of m.
template <class T, class F>
void with_streamed_team(int64_t m, F&& f) {
  constexpr int held = kMostHeld<T>;
  if (m <= 32) return f.template operator()<8, 4>();
  if (m <= kWarp * held) return f.template operator()<kWarp, held>();
  if (m <= kThreads * held) return f.template operator()<kThreads, held>();
  f.template operator()<kThreads, 0>();
}

/// Enough stripes to fill the device, of at least 16 rows so that column sums are little beside the scores.
template <int lanes, class T>
Stripes cut(const SinkhornCall<T>& call) {
  const int64_t teams = kThreads / lanes, least = teams * 2 < 16 ? 16 : teams * 2;
  const int64_t wanted = (int64_t{4} * multiprocessors() + call.count - 1) / call.count;
  const int64_t most = call.n < least ? 1 : (call.n + least - 1) / least, stripes = wanted < most ? wanted : most;
  const int64_t rows = call.n == 0 ? 1 : (call.n + stripes - 1) / stripes;
  return {call.n == 0 ? 1 : (call.n + rows - 1) / rows, rows};
}

template <int lanes, class T>
Launch sweep(const SinkhornCall<T>& call, Stripes stripes) {
  const int threads = kThreads, teams = threads / lanes;
  return {.blocks = call.count * stripes.count, .threads = threads, .shared_bytes = teams == 1 ? 0 : 2 * shared_bytes<T>(teams * call.m)};
}

}  // namespace

template <class T>
void streamed_sinkhorn_forward(const SinkhornCall<T>& call, Span<T> plan) {
  with_streamed_team<T>(call.m, [&]<int lanes, int K>() {
    const Stripes stripes = cut<lanes>(call);
    const Launch rows = sweep<lanes>(call, stripes);
    const Launch columns{.blocks = call.count * ColumnChunk::count(call.m), .threads = kThreads};
    const Launch matrices = grid_stride(call.count, kThreads, kThreads / kWarp);
    Scratch scratch;
    ForwardBuffers<T> buffers;
    buffers.partial = {scratch.take<T>(rows.blocks * call.m), scratch.take<T>(rows.blocks * call.m)};
    buffers.shifts = scratch.take<T>(call.count * call.n);
    buffers.target = scratch.take<Marginals<T>>(call.count);
    buffers.taken = scratch.take<int32_t>(call.count);
    buffers.errors = scratch.take<double>(columns.blocks);
    buffers.extremes = scratch.take<Extremes<T>>(rows.blocks);

    const Span<T> none;
    launch(KERNEL(count_lines<T>), grid_stride(call.count, kThreads, 1), call, buffers.target, buffers.taken);
    bool written = call.iterations == 1;
    launch(KERNEL(streamed_row_step<T, lanes, K, true>), rows, call, int64_t{0}, written ? plan : none, buffers, stripes);
    for (int64_t k = 0; k < call.column_steps(); ++k) {
      if (k == 0)
        launch(KERNEL(streamed_column_step<T, LogSum<T>>), columns, call, k, buffers, stripes);
      else
        launch(KERNEL(streamed_column_step<T, T>), columns, call, k, buffers, stripes);
      if (call.tolerance > 0) launch(KERNEL(stop_matrices<T>), matrices, call, k, buffers);
      if (k + 1 == call.row_steps()) break;
      written = k + 2 == call.row_steps() && call.iterations % 2 == 1 && call.tolerance == 0;
      launch(KERNEL(streamed_row_step<T, lanes, K, false>), rows, call, k + 1, written ? plan : none, buffers, stripes);
    }
    if (!written) launch(KERNEL(streamed_plan<T, lanes, K>), rows, call, plan, buffers, stripes);
    if (call.iterations == 1)
      launch(KERNEL(streamed_column_step<T, LogSum<T>>), columns, call, int64_t{-1}, buffers, stripes);
    else
      launch(KERNEL(streamed_column_step<T, T>), columns, call, int64_t{-1}, buffers, stripes);
    launch(KERNEL(write_stats<T>), matrices, call, buffers, stripes);
  });
}

template <class T>
void streamed_sinkhorn_backward(const SinkhornCall<T>& call, Span<const T> dy, GradSpan<T> dx) {
  with_streamed_team<T>(call.m, [&]<int lanes, int K>() {
    const Stripes stripes = cut<lanes>(call);
    const Launch rows = sweep<lanes>(call, stripes);
    const Launch columns{.blocks = call.count * ColumnChunk::count(call.m), .threads = kThreads};
    const int64_t pairs = call.gradient == SinkhornGradient::unrolled ? call.column_steps() : 0;
    Scratch scratch;
    BackwardBuffers<T> buffers;
    buffers.target = scratch.take<Marginals<T>>(call.count);
    buffers.dy = dy;
    launch(KERNEL(count_lines<T>), grid_stride(call.count, kThreads, 1), call, buffers.target, Span<int32_t>{});
    if (pairs == 0) {
      launch(KERNEL(streamed_gradient<T, lanes, K, true>), rows, call, dx, buffers, stripes);
      return;
    }
    buffers.partial.sum = scratch.take<T>(rows.blocks * call.m);
    buffers.shifts = scratch.take<T>(call.count * call.n);
    buffers.df = scratch.take<T>(call.count * pairs * call.n);
    buffers.c = scratch.take<T>(call.count * pairs * call.m);
    launch(KERNEL(streamed_undo<T, lanes, K, true>), rows, call, int64_t{-1}, buffers, stripes);
    launch(KERNEL(streamed_weights<T>), columns, call, int64_t{-1}, buffers, stripes);
    for (int64_t k = pairs - 1; k > 0; --k) {
      launch(KERNEL(streamed_undo<T, lanes, K, false>), rows, call, k, buffers, stripes);
      launch(KERNEL(streamed_weights<T>), columns, call, k, buffers, stripes);
    }
    launch(KERNEL(streamed_gradient<T, lanes, K, false>), rows, call, dx, buffers, stripes);
  });
}

template void streamed_sinkhorn_forward(const SinkhornCall<float>&, Span<float>);
template void streamed_sinkhorn_forward(const SinkhornCall<double>&, Span<double>);
template void streamed_sinkhorn_backward(const SinkhornCall<float>&, Span<const float>, GradSpan<float>);
template void streamed_sinkhorn_backward(const SinkhornCall<double>&, Span<const double>, GradSpan<double>);

}  // namespace sinkgrad::cuda
