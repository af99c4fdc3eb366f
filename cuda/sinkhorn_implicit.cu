// The gradient of sinkhorn at its fixed point, a linear system with the marginals a = P 1 and b = P^T 1 of the plan P, D = dL/dP:
//   [diag a  P; P^T  diag b] [alpha; beta] = [(P o D) 1; (P o D)^T 1]      dS = P o (D - alpha 1^T - 1 beta^T)
// alpha is eliminated; beta comes from conjugate gradients, preconditioned by b, in f64: the system is singular along constants.
// A block or cluster solves for one matrix and stops by itself. P is held on chip or, where it does not fit, computed again from
// the scores in every iteration: launches that the host cannot stop would cost more, 4 min(n, m) + 20 of them whatever the matrix.
#include "cuda/sinkhorn_residence.h"

namespace sinkgrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr double kSmallest = 2.2250738585072014e-308;  ///< normal number

/// The plan in place of x: computed again by every x().
template <class T>
struct StreamedPlan : StreamedRows<T> {
  static constexpr bool kReadsScores = false;
  Span<T> f, g;
  __device__ T x(int64_t i, int64_t j, T shift) const { return fast_exp(StreamedRows<T>::x(i, j, shift) + potential(g, j) + f[this->first + i]); }
};

/// Scratch of all matrices, in f64 but for the row maxima.
struct SolveVectors {
  Span<double> a, r;                      ///< (matrices, n)
  Span<double> b, beta, rest, q, search;  ///< (matrices, m)
  Span<double> sums;                      ///< (blocks, m): column sums of every block
  __device__ SolveVectors of(int64_t matrix, int64_t n, int64_t m) const {
    auto columns = [&](const Span<double>& v) { return v.part(matrix * m, m); };
    return {a.part(matrix * n, n),
            r.part(matrix * n, n),
            columns(b),
            columns(beta),
            columns(rest),
            columns(q),
            columns(search),
            sums.part(matrix * cluster_size() * m, cluster_size() * m)};
  }
};

/// Excluded rows and columns have marginal 0.
__device__ double divide(double x, double y) { return y > 0 ? x / y : 0.0; }

struct Totals {
  double x = 0, y = 0, z = 0;
};
struct AddTotals {
  __device__ Totals operator()(const Totals& a, const Totals& b) const { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
};

/// Calls body(j, sum over the matrix) for each_own_column(). All blocks must meet after it.
template <class Team, int K, class Body>
__device__ void combine_blocks(const Columns<double, double, K>& sums, const Shared<double>& partial, const Span<double>& lines, int64_t m,
                               Body body) {
  const auto mine = lines.part(cluster_rank() * m, m);
  combine_teams<Team>(sums, ColumnStore<Shared<double>>{partial, {}}, m, [&](auto j, double s) { mine[j] = s; });
  if (cluster_size() > 1) cluster_sync();
  each_own_column(m, [&](int64_t j) {
    double s = lines[j];
    for (int block = 1; block < cluster_size(); ++block) s += lines[block * m + j];
    body(j, s);
  });
}

/// a, r, and the column sums of P o D; resident rows hold P from here on.
template <class Team, int K, class T, class Rows, class D>
__device__ void begin_solve(const Rows& rows, int64_t m, const Span<T>& f, const Span<T>& g, D gradient, const SolveVectors& v,
                            Columns<double, double, K>& sums, const Shared<T>& scratch, const Shared<double>& scratch64) {
  sums.template clear<Team>(m);
  for (int64_t base = 0; base < rows.count; base += Team::count()) {
    const int64_t i = base + Team::index(), row = rows.first + i;
    const bool live = i < rows.count;
    Tile<T, K> p;
    const T shift = fetch<true, Team>(rows, i, m, p, scratch);
    T fi = 0;
    if (live) fi = f[row];
    auto plan = [&](auto j, T x) { return fast_exp(x + potential(g, j) + fi); };
    double a = 0, r = 0;
    each_column<Team, K>(m, [&](int k, auto j) {
      const T pj = plan(j, p.get(k, [&] { return rows.scores(row, j) - shift; }));
      p.set(k, pj);
      if (!live) return;
      rows.keep(i, j, pj);
      a += static_cast<double>(pj);
      r += static_cast<double>(pj) * gradient(row, j);
    });
    a = Team::reduce(a, Sum{}, scratch64);
    r = Team::reduce(r, Sum{}, scratch64);
    if (live && Team::rank() == 0) {
      v.a[row] = a;
      v.r[row] = r;
    }
    each_column<Team, K>(m, [&](int k, auto j) {
      if (!live) return;
      const T pj = p.get(k, [&] { return plan(j, rows.scores(row, j) - shift); });
      sums.update(k, j, [&](double s) { return s + static_cast<double>(pj) * gradient(row, j); });
    });
  }
}

/// Column sums of u_i P_ij, where u_i = weight(i, sum_j P_ij x(j)).
template <class Team, int K, class T, class Rows, class X, class W>
__device__ void transposed_product(const Rows& rows, int64_t m, X x, W weight, Columns<double, double, K>& sums, const Shared<T>& scratch,
                                   const Shared<double>& scratch64) {
  sums.template clear<Team>(m);
  for (int64_t base = 0; base < rows.count; base += Team::count()) {
    const int64_t i = base + Team::index();
    Tile<T, K> held;
    const T shift = fetch<false, Team>(rows, i, m, held, scratch);
    auto p = [&](int k, auto j) { return static_cast<double>(held.get(k, [&] { return rows.x(i, j, shift); })); };
    double u = 0;
    if (i < rows.count) each_column<Team, K>(m, [&](int k, auto j) { u += p(k, j) * x(j); });
    u = Team::reduce(u, Sum{}, scratch64);
    if (i >= rows.count) continue;
    u = weight(rows.first + i, u);
    each_column<Team, K>(m, [&](int k, auto j) { sums.update(k, j, [&](double s) { return s + u * p(k, j); }); });
  }
}

template <class T, int lanes, int K, bool resident>
__global__ void __launch_bounds__(kThreads, 1)
    implicit_backward(SinkhornCall<T> call, SolveVectors vectors, Span<T> shifts, Span<const T> dy, GradSpan<T> dx, int rows_per_block, int pitch) {
  using Team = RowTeam<lanes>;
  STATIC_SHARED(T, scratch, kWarp);
  STATIC_SHARED(int, counts, kWarp);
  STATIC_SHARED(double, scratch64, kWarp);
  STATIC_SHARED(Totals, totals_scratch, kWarp);
  STATIC_SHARED(Totals, first_slots, kMostBlocks);
  STATIC_SHARED(Totals, second_slots, kMostBlocks);
  SharedMemory memory;
  const int64_t matrix = matrix_of_block(), n = call.n, m = call.m, begin = matrix * n * m;
  const int64_t taken = call.half_steps_taken(matrix);
  const Span<T> f = call.row_potentials(matrix, (taken - 1) / 2), g = call.column_potentials(matrix, taken / 2 - 1);
  const Shared<T> held = memory.take<T>(resident ? rows_per_block * pitch : 0);
  const ResidentRows<T> on_chip = resident_rows(call, held, rows_per_block, pitch);
  auto all_rows = [&] {
    if constexpr (resident)
      return on_chip;
    else
      return StreamedPlan<T>{{on_chip.scores, shifts.part(matrix * n, n), on_chip.first, on_chip.count}, f, g};
  };
  const auto rows = all_rows();
  Shared<double> partial;
  if constexpr (!Team::kIsBlock) partial = memory.take<double>(Team::count() * static_cast<int>(m));
  const SolveVectors v = vectors.of(matrix, n, m);
  const T scale = marginals(call, on_chip.scores, counts).output_scale;
  auto gradient = [&](int64_t row, auto j) { return static_cast<double>(dy[begin + row * m + j] * scale); };
  auto nothing = [](auto) { return 0.0; };
  Columns<double, double, K> sums{{}, {v.sums.part(cluster_rank() * m, m), {}}};

  Totals t;
  begin_solve<Team>(rows, m, f, g, gradient, v, sums, scratch, scratch64);
  combine_blocks<Team>(sums, partial, v.sums, m, [&](int64_t j, double c) {
    v.rest[j] = c;
    t.x += c * c;
  });
  all_blocks_sync();
  transposed_product<Team>(
      rows, m, nothing, [](int64_t, double) { return 1.0; }, sums, scratch, scratch64);
  combine_blocks<Team>(sums, partial, v.sums, m, [&](int64_t j, double b) { v.b[j] = b; });
  all_blocks_sync();
  transposed_product<Team>(
      rows, m, nothing, [&](int64_t i, double) { return divide(v.r[i], v.a[i]); }, sums, scratch, scratch64);
  combine_blocks<Team>(sums, partial, v.sums, m, [&](int64_t j, double s) {
    const double rest = v.rest[j] - s, z = divide(rest, v.b[j]);
    v.rest[j] = rest;
    v.beta[j] = 0;
    v.search[j] = z;
    t.y += rest * z;
    t.z += rest * rest;
  });
  t = cluster_reduce(t, AddTotals{}, totals_scratch, first_slots);
  const double size = sqrt(maximum(t.x, kSmallest)), goal = (sizeof(T) == 4 ? 1e-9 : 1e-15) * size;
  const int64_t most = 4 * (n < m ? n : m) + 20;
  double rho = t.y, left = sqrt(t.z);
  all_blocks_sync();
  for (int64_t k = 0; k < most && left > goal; ++k) {
    auto search = [&](auto j) { return static_cast<double>(v.search[j]); };
    transposed_product<Team>(
        rows, m, search, [&](int64_t i, double dot) { return divide(dot, v.a[i]); }, sums, scratch, scratch64);
    t = {};
    combine_blocks<Team>(sums, partial, v.sums, m, [&](int64_t j, double s) {
      const double direction = v.search[j], b = v.b[j], q = b * direction - s;
      v.q[j] = q;
      t.x += direction * q;
      t.y += b * direction * direction;
    });
    t = cluster_reduce(t, AddTotals{}, totals_scratch, first_slots);
    if (!(t.x > 1e-12 * t.y)) break;  // only the constants are left in the direction
    const double step = rho / t.x;
    t = {};
    each_own_column(m, [&](int64_t j) {
      v.beta[j] += step * v.search[j];
      const double rest = v.rest[j] - step * v.q[j];
      v.rest[j] = rest;
      t.x += rest * divide(rest, v.b[j]);
      t.y += rest * rest;
    });
    t = cluster_reduce(t, AddTotals{}, totals_scratch, second_slots);
    each_own_column(m, [&](int64_t j) { v.search[j] = divide(v.rest[j], v.b[j]) + t.x / rho * v.search[j]; });
    rho = t.x;
    left = sqrt(t.y);
    all_blocks_sync();
  }
  for (int64_t base = 0; base < rows.count; base += Team::count()) {
    const int64_t i = base + Team::index(), row = rows.first + i;
    Tile<T, K> held_row;
    const T shift = fetch<false, Team>(rows, i, m, held_row, scratch);
    auto p = [&](int k, auto j) { return static_cast<double>(held_row.get(k, [&] { return rows.x(i, j, shift); })); };
    double alpha = 0;
    if (i < rows.count) each_column<Team, K>(m, [&](int k, auto j) { alpha += p(k, j) * v.beta[j]; });
    alpha = Team::reduce(alpha, Sum{}, scratch64);
    if (i >= rows.count) continue;
    alpha = divide(v.r[row] - alpha, v.a[row]);
    each_column<Team, K>(m, [&](int k, auto j) { dx.put(begin + row * m + j, static_cast<T>(p(k, j) * (gradient(row, j) - alpha - v.beta[j]))); });
  }
  if (cluster_rank() == 0 && threadIdx.x == 0) call.stats[matrix * kSinkhornStats + 3] = static_cast<T>(left / size);
}

template <class T, int lanes, int K, bool resident>
void solve(const SinkhornCall<T>& call, Span<const T> dy, GradSpan<T> dx, const Residence& r) {
  Scratch scratch;
  const int64_t n = call.count * call.n, m = call.count * call.m;
  SolveVectors v;
  for (Span<double>* rows : {&v.a, &v.r}) *rows = scratch.take<double>(n);
  for (Span<double>* columns : {&v.b, &v.beta, &v.rest, &v.q, &v.search}) *columns = scratch.take<double>(m);
  v.sums = scratch.take<double>(r.launch.blocks * call.m);
  const Span<T> shifts = resident ? Span<T>{} : scratch.take<T>(n);
  launch(KERNEL(implicit_backward<T, lanes, K, resident>), r.launch, call, v, shifts, dy, dx, r.rows, r.pitch);
}

/// Rows in global memory, one cluster per matrix.
template <class T, int lanes, int K>
void solve_streamed(const SinkhornCall<T>& call, Span<const T> dy, GradSpan<T> dx) {
  const int blocks = architecture() >= 90 ? kMostBlocks : 1, teams = kThreads / lanes;
  Residence r;
  r.launch = {
      .blocks = call.count * blocks, .threads = kThreads, .shared_bytes = teams == 1 ? 0 : shared_bytes<double>(teams * call.m), .cluster = blocks};
  r.rows = static_cast<int>((call.n + blocks - 1) / blocks);
  solve<T, lanes, K, false>(call, dy, dx, r);
}

}  // namespace

template <class T>
void implicit_sinkhorn_backward(const SinkhornCall<T>& call, Span<const T> dy, GradSpan<T> dx) {
  const bool done = with_resident_team<T>(call.m, [&]<int lanes, int K>() {
    Residence r;
    auto shared = [&](int teams) { return shared_bytes<double>(teams * call.m); };
    if (!find_residence<T, lanes>(call, kThreads, shared, r)) return false;
    solve<T, lanes, K, true>(call, dy, dx, r);
    return true;
  });
  if (done) return;
  if (call.m <= kWarp * kMostHeld<T>)
    solve_streamed<T, kWarp, kMostHeld<T>>(call, dy, dx);
  else if (call.m <= kThreads * kMostHeld<T>)
    solve_streamed<T, kThreads, kMostHeld<T>>(call, dy, dx);
  else
    solve_streamed<T, kThreads, 0>(call, dy, dx);
}

template void implicit_sinkhorn_backward(const SinkhornCall<float>&, Span<const float>, GradSpan<float>);
template void implicit_sinkhorn_backward(const SinkhornCall<double>&, Span<const double>, GradSpan<double>);

}  // namespace sinkgrad::cuda
