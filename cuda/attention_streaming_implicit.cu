// The gradient of Sinkhorn attention at its fixed point, as the CPU's ops/cpu/sinkhorn_implicit.h, streaming: with the actual marginals a = P 1,
// b = P^T 1 and r = (P o D) 1, c = (P o D)^T 1 for D = dO V^T,
//   (diag b - P^T diag(1/a) P) beta = c - P^T (r / a)      alpha = (r - P beta) / a      dS = P o (D - alpha 1^T - 1 beta^T)
// by conjugate gradients, preconditioned by b. Always in f64: the system is singular along constants. Each iteration is one sweep over the
// scores and two launches over the columns; all are launched at once, those after the end of a matrix return at once.
#include <algorithm>

#include "cuda/attention_streaming_backward.h"

namespace sinkgrad::cuda::streaming {
namespace {

/// The CPU allows 4 min(n, m) + 20 iterations. Well-posed systems need far fewer; each launch that finds nothing to do costs microseconds.
constexpr int64_t kMostIterations = 400;
constexpr int kSolverThreads = 512;

/// The state of a solve per matrix; vectors are (matrices, m padded).
struct Solver {
  AttentionShape shape;
  double tolerance;                                ///< of the residual, relative
  Span<double> b, c, beta, rest, direction, sums;  ///< sums: the column sums of the last sweep
  Span<double> rho, size;                          ///< (matrices): of the iteration; |c|
  Span<int32_t> running;                           ///< (matrices)
};

__device__ double divide(double x, double y) { return y > 0 ? x / y : 0.0; }  // excluded columns have marginal 0

/// Partial sums added up in a fixed order, a thread per column.
__global__ void attention_add_parts(AttentionShape s, Span<const double> partial, int64_t parts, Span<const int32_t> running, Span<double> sums) {
  const int64_t width = padded(s.m);
  for (int64_t k = thread_index(); k < sums.count; k += thread_count()) {
    const int64_t matrix = k / width, j = k % width;
    if (running && running[matrix] == 0) continue;
    double sum = 0;
    if (j < s.m)
      for (int64_t part = 0; part < parts; ++part) sum += partial[(matrix * parts + part) * width + j];
    sums[k] = sum;
  }
}

__global__ void attention_clear(Span<int32_t> x) {
  for (int64_t k = thread_index(); k < x.count; k += thread_count()) x[k] = 0;
}

/// A block per matrix: rest = c - sums, direction = rest / b.
__global__ void attention_start_solver(Solver a) {
  STATIC_SHARED(double, scratch, kWarp);
  const int64_t width = padded(a.shape.m), first = blockIdx.x * width;
  double size = 0, left = 0, rho = 0;
  for (int64_t k = first + threadIdx.x; k < first + width; k += blockDim.x) {
    const double c = a.c[k], rest = c - a.sums[k], z = divide(rest, a.b[k]);
    a.beta[k] = 0;
    a.rest[k] = rest;
    a.direction[k] = z;
    size += c * c;
    left += rest * rest;
    rho += rest * z;
  }
  size = block_sum(size, scratch);
  left = block_sum(left, scratch);
  rho = block_sum(rho, scratch);
  if (threadIdx.x != 0) return;
  size = sqrt(size > 0 ? size : 2.2250738585072014e-308);
  a.size[blockIdx.x] = size;
  a.rho[blockIdx.x] = rho;
  a.running[blockIdx.x] = sqrt(left) > a.tolerance * size;
}

/// A block per matrix: one step along the direction; `sums` is P^T ((P direction) / a).
__global__ void attention_step_solver(Solver a) {
  STATIC_SHARED(double, scratch, kWarp);
  const int64_t width = padded(a.shape.m), first = blockIdx.x * width;
  if (a.running[blockIdx.x] == 0) return;
  double weight = 0, curvature = 0;
  for (int64_t k = first + threadIdx.x; k < first + width; k += blockDim.x) {
    const double x = a.direction[k], b = a.b[k];
    weight += b * x * x;
    curvature += x * (b * x - a.sums[k]);
  }
  weight = block_sum(weight, scratch);
  curvature = block_sum(curvature, scratch);
  const double rho = a.rho[blockIdx.x];
  const bool stuck = !(curvature > 1e-12 * weight);  // only the constants are left in the direction
  double left = 0, next = 0;
  if (!stuck) {
    for (int64_t k = first + threadIdx.x; k < first + width; k += blockDim.x) {
      const double x = a.direction[k], b = a.b[k], rest = a.rest[k] - rho / curvature * (b * x - a.sums[k]);
      a.beta[k] += rho / curvature * x;
      a.rest[k] = rest;
      left += rest * rest;
      next += rest * divide(rest, b);
    }
    left = block_sum(left, scratch);
    next = block_sum(next, scratch);
    for (int64_t k = first + threadIdx.x; k < first + width; k += blockDim.x)
      a.direction[k] = divide(a.rest[k], a.b[k]) + next / rho * a.direction[k];
  }
  if (threadIdx.x != 0) return;
  if (!stuck) a.rho[blockIdx.x] = next;
  a.running[blockIdx.x] = !stuck && sqrt(left) > a.tolerance * a.size[blockIdx.x];
}

template <class T>
__global__ void attention_residuals(Solver a, Span<T> stats) {
  STATIC_SHARED(double, scratch, kWarp);
  const int64_t width = padded(a.shape.m), first = blockIdx.x * width;
  double left = 0;
  for (int64_t k = first + threadIdx.x; k < first + width; k += blockDim.x) left += a.rest[k] * a.rest[k];
  left = block_sum(left, scratch);
  if (threadIdx.x == 0) stats[4 * blockIdx.x + 3] = static_cast<T>(sqrt(left) / a.size[blockIdx.x]);
}

}  // namespace

template <class T>
void implicit_backward(const AttentionShape& s, const Backward& b) {
  using F = Full<double>;
  const bool scores = b.in_grad[0] || b.in_grad[1];
  const int64_t n = s.matrices() * padded(s.n), m = s.matrices() * padded(s.m);
  Scratch scratch;
  const BackwardOperands<F, T> o(scratch, s, b, scores ? 2 : 0);
  auto rows = [&] { return scratch.take<double>(n); };
  auto columns = [&] { return scratch.take<double>(m); };
  const Span<double> nothing = rows(), weighted = columns();
  load_lines(s, o.taken, LoadLines<double, T>{.to = nothing, .lines = s.n, .valid = o.valid.rows, .excluded = 0}, {}, {}, {});
  launch_value_gradient(
      ValueGradient<F>{.shape = s, .masks = o.masks, .queries = o.queries, .keys = o.keys, .weight = nothing, .weighted = weighted, .dv = o.dv});
  if (!scores) return launch_gradients(s, b, o, Rounds<double>{});

  // The plan as it is: its product with V, its row sums and its column sums, in f64.
  const StripePlan output = plan_output(s, o.queries.x, o.keys.x, static_cast<bool>(o.masks.pairs)), sweeps = plan_sweep(s, o.queries.x, o.keys.x);
  const Span<double> partial = scratch.take<double>(m * std::max(output.grid.parts, sweeps.grid.parts)),
                     out = scratch.take<double>(b.out.shape.count()), a = rows(), r = rows(), alpha = rows();
  Solver solver{.shape = s,
                .tolerance = sizeof(T) == 4 ? 1e-9 : 1e-15,
                .b = columns(),
                .c = columns(),
                .beta = columns(),
                .rest = columns(),
                .direction = columns(),
                .sums = columns(),
                .rho = scratch.take<double>(s.matrices()),
                .size = scratch.take<double>(s.matrices()),
                .running = scratch.take<int32_t>(s.matrices())};
  const Span<int32_t> none_taken = scratch.take<int32_t>(s.matrices());
  launch(KERNEL(attention_clear), grid_stride(s.matrices()), none_taken);
  const RowState<double> potentials{.max = o.queries.max, .potential = o.queries.potential};
  launch_output(output, Output<F>{.shape = s,
                                  .masks = o.masks,
                                  .valid = o.valid,
                                  .taken = none_taken,  // an even number: nothing is normalised
                                  .q = o.queries.x,
                                  .k = o.keys.x,
                                  .v = o.keys.dx,
                                  .rows = potentials,
                                  .column = o.keys.potential,
                                  .partial = partial,
                                  .extremes = scratch.take<double>(s.matrices() * output.grid.parts * output.grid.cluster * 2),
                                  .row_sums = a,
                                  .out = out});
  auto add_parts = [&](const StripePlan& plan, Span<const int32_t> running, Span<double> sums) {
    launch(KERNEL(attention_add_parts), grid_stride(m), s, partial, plan.grid.parts, running, sums);
  };
  // sum_i = sum_j P_ij weight_j, then the column sums of P weighted by what the rule makes of them.
  auto sweep = [&](Span<const int32_t> running, Span<const double> weight, const RowRule<double>& rule, bool column_sums) {
    launch_sweep(sweeps, Sweep<F>{.shape = s,
                                  .masks = o.masks,
                                  .active = running,
                                  .q = o.queries.x,
                                  .k = o.keys.x,
                                  .rows = potentials,
                                  .column = o.keys.potential,
                                  .weight = weight,
                                  .rule = rule,
                                  .partial = column_sums ? partial : Span<double>{}});
    if (column_sums) add_parts(sweeps, running, solver.sums);
  };

  add_parts(output, {}, solver.b);
  multiply_lines(s, LineProducts<F, T, double>{.to = r, .a = span<const T>(b.out_grad), .b = out, .lines = s.n, .dims = s.e, .valid = o.valid.rows});
  multiply_lines(
      s, LineProducts<F, T, double>{.to = solver.c, .a = span<const T>(b.in[2]), .b = o.dv, .lines = s.m, .dims = s.e, .valid = o.valid.columns});
  sweep({}, {}, {.normalise = false, .x = r, .y = a}, true);
  launch(KERNEL(attention_start_solver), {.blocks = s.matrices(), .threads = kSolverThreads}, solver);
  const int64_t most = std::min(4 * std::min(s.n, s.m) + 20, kMostIterations);
  for (int64_t k = 0; k < most; ++k) {
    sweep(solver.running, solver.direction, {.normalise = false, .y = a, .sign = 1}, true);
    launch(KERNEL(attention_step_solver), {.blocks = s.matrices(), .threads = kSolverThreads}, solver);
  }
  sweep({}, solver.beta, {.normalise = false, .x = r, .y = a, .sign = -1, .w = alpha}, false);
  launch(KERNEL(attention_residuals<T>), {.blocks = s.matrices(), .threads = kSolverThreads}, solver, span<T>(b.saved[2]));

  const RankColumns<double> ranks{.shape = s, .kind = Ranks::implicit, .valid = o.valid, .rounds = {}, .row = alpha, .column = solver.beta};
  append_ranks(o.queries.dx, o.keys.dx, 2, ranks);
  launch_gradients(s, b, o, Rounds<double>{});
}

template void implicit_backward<float>(const AttentionShape&, const Backward&);
template void implicit_backward<double>(const AttentionShape&, const Backward&);

}  // namespace sinkgrad::cuda::streaming
