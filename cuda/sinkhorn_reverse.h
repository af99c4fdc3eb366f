// The exact reverse of the half-steps from potentials alone. With W(f, g) = exp(x + f + g), P the plan with row sums 1, D = dL/dP,
// b the column target, and k = K-1 .. 0 over the K pairs of a column step and the row step before it:
//   alpha = <P, D>_row where the last step is a row step, else 0          dg = sum_i P (D - alpha)
//   c_k = dg / b     df_k = -sum_j c_k W(f_k, g_k)     dg = -sum_i df_k W(f_k, g_{k-1})
//   dS = P (D - alpha) - sum_k [c_k W(f_k, g_k) + df_k W(f_k, g_{k-1})]
// (df of the first pair starts at <P, D>_row where the last step is a column step.) Sweeps store c and df only; dS is formed at the
// end. W is evaluated jointly, 2 l exponentials per score: the rank-one form P exp(f - f_last) exp(g - g_last) needs none of them
// but overflows once potentials have drifted, and the sweeps wait for memory as it is.
#pragma once
#include "cuda/sinkhorn_rows.h"

namespace sinkgrad::cuda {

/// One matrix on its way back.
template <class T>
struct Reverse {
  /// Of df and c, dy: the whole arrays of the call.
  __device__ Reverse(const SinkhornCall<T>& call, int64_t matrix, const Span<T>& all_df, const Span<T>& all_c, const Span<const T>& all_dy,
                     T output_scale)
      : n(call.n), m(call.m), taken(call.half_steps_taken(matrix)), scale(output_scale), unrolled(call.gradient == SinkhornGradient::unrolled) {
    const int64_t rows = call.row_steps() * n, columns = call.column_steps() * m, df_size = call.column_steps() * n;
    f = call.row.part(matrix * rows, rows);
    g = call.column.part(matrix * columns, columns);
    df = all_df ? all_df.part(matrix * df_size, df_size) : all_df;
    c = all_c ? all_c.part(matrix * columns, columns) : all_c;
    dy = all_dy.part(matrix * n * m, n * m);
  }
  int64_t n, m, taken;
  T scale;  ///< of the plan
  bool unrolled;
  Span<T> f, g;      ///< (row_steps, n), (column_steps, m)
  Span<T> df, c;     ///< (column_steps, n), (column_steps, m): see above; absent when no pair is undone
  Span<const T> dy;  ///< (n, m)

  __device__ int64_t pairs() const { return taken / 2; }
  __device__ bool ends_on_rows() const { return taken % 2 == 1; }
  __device__ Span<T> f_of(int64_t k) const { return f.part(k * n, n); }
  __device__ Span<T> g_of(int64_t k) const { return k < 0 ? Span<T>{} : g.part(k * m, m); }
  __device__ Span<T> df_of(int64_t k) const { return df.part(k * n, n); }
  __device__ Span<T> c_of(int64_t k) const { return c.part(k * m, m); }
  __device__ Span<T> last_f() const { return f_of((taken - 1) / 2); }
  __device__ Span<T> last_g() const { return g_of(taken / 2 - 1); }
};

/// Column sums of P (D - alpha): the first sweep, which reads the gradient.
template <class Team, int K, class T, class Rows>
__device__ void reverse_begin(const Rows& rows, const Reverse<T>& r, Columns<T, T, K>& sums, const Shared<T>& scratch) {
  const Span<T> f = r.last_f(), g = r.last_g();
  sums.template clear<Team>(r.m);
  for (int64_t base = 0; base < rows.count; base += Team::count()) {
    const int64_t i = base + Team::index(), row = rows.first + i;
    const bool live = i < rows.count;
    Tile<T, K> p, d;
    const T shift = fetch<true, Team>(rows, i, r.m, p, scratch);
    T fi = 0;
    if (live) fi = f[row];
    auto plan = [&](auto j, T x) { return fast_exp(x + potential(g, j) + fi); };
    auto gradient = [&](auto j) { return live ? r.dy[row * r.m + j] * r.scale : T(0); };
    T inner = 0;
    each_column<Team, K>(r.m, [&](int k, auto j) {
      const T pj = plan(j, p.get(k, [&] { return rows.x(i, j, shift); })), dj = gradient(j);
      p.set(k, pj);
      d.set(k, dj);
      inner += pj * dj;
    });
    inner = Team::reduce(inner, Sum{}, scratch);
    if (!r.ends_on_rows() && live && Team::rank() == 0) r.df_of(r.pairs() - 1)[row] = inner;
    const T alpha = r.ends_on_rows() ? inner : T(0);
    each_column<Team, K>(r.m, [&](int k, auto j) {
      const T pj = p.get(k, [&] { return plan(j, rows.x(i, j, shift)); }), dj = d.get(k, [&] { return gradient(j); });
      sums.update(k, j, [&](T s) { return s + pj * (dj - alpha); });
    });
  }
}

/// df_k of the stripe and the column sums of df_k W(f_k, g_{k-1}), for k > 0.
template <class Team, int K, class T, class Rows>
__device__ void reverse_pair(const Rows& rows, const Reverse<T>& r, int64_t k_pair, Columns<T, T, K>& sums, const Shared<T>& scratch) {
  const Span<T> f = r.f_of(k_pair), g = r.g_of(k_pair), g_before = r.g_of(k_pair - 1), c = r.c_of(k_pair), df = r.df_of(k_pair);
  const bool has_start = !r.ends_on_rows() && k_pair == r.pairs() - 1;
  sums.template clear<Team>(r.m);
  for (int64_t base = 0; base < rows.count; base += Team::count()) {
    const int64_t i = base + Team::index(), row = rows.first + i;
    const bool live = i < rows.count;
    Tile<T, K> x;
    const T shift = fetch<false, Team>(rows, i, r.m, x, scratch);
    T fi = 0, dfi = 0;
    if (live) fi = f[row];
    if (live && has_start && Team::rank() == 0) dfi = df[row];
    each_column<Team, K>(r.m, [&](int k, auto j) {
      const T xj = x.get(k, [&] { return rows.x(i, j, shift); });
      dfi -= c[j] * fast_exp(xj + g[j] + fi);
    });
    dfi = Team::reduce(dfi, Sum{}, scratch);
    if (live && Team::rank() == 0) df[row] = dfi;
    each_column<Team, K>(r.m, [&](int k, auto j) {
      const T xj = x.get(k, [&] { return rows.x(i, j, shift); }), w = dfi * fast_exp(xj + g_before[j] + fi);
      sums.update(k, j, [&](T s) { return s + w; });
    });
  }
}

/// dS of the stripe, with the last pair to be undone in the same visit. A frozen gradient undoes one row step at most.
template <bool first, class Team, int K, class T, class Rows>
__device__ void reverse_end(const Rows& rows, const Reverse<T>& r, const GradSpan<T>& dx, int64_t dx_begin, const Shared<T>& scratch) {
  const Span<T> f = r.last_f(), g = r.last_g();
  const int64_t pairs = r.pairs();
  const bool undoes = r.unrolled && pairs > 0, undoes_row_step = undoes || (pairs > 0 && !r.ends_on_rows());
  const int64_t inner_pair = undoes ? 0 : pairs - 1;
  const bool has_start = !r.ends_on_rows() && inner_pair == pairs - 1;
  Span<T> f_inner, g_inner, g_before, c_inner;
  if (undoes_row_step) {
    f_inner = r.f_of(inner_pair);
    g_before = r.g_of(inner_pair - 1);
  }
  if (undoes) {
    g_inner = r.g_of(0);
    c_inner = r.c_of(0);
  }
  for (int64_t base = 0; base < rows.count; base += Team::count()) {
    const int64_t i = base + Team::index(), row = rows.first + i;
    const bool live = i < rows.count;
    Tile<T, K> held, d;  // d becomes the gradient
    const T shift = fetch<first, Team>(rows, i, r.m, held, scratch);
    T fi = 0, f_in = 0;
    if (live) fi = f[row];
    if (live && undoes_row_step) f_in = f_inner[row];
    auto x = [&](int k, auto j) { return held.get(k, [&] { return rows.x(i, j, shift); }); };
    auto plan = [&](int k, auto j) { return fast_exp(x(k, j) + potential(g, j) + fi); };
    auto gradient = [&](auto j) { return live ? r.dy[row * r.m + j] * r.scale : T(0); };
    T inner = 0;
    each_column<Team, K>(r.m, [&](int k, auto j) {
      const T dj = gradient(j);
      d.set(k, dj);
      inner += plan(k, j) * dj;
    });
    inner = Team::reduce(inner, Sum{}, scratch);
    const T alpha = r.ends_on_rows() ? inner : T(0);
    auto direct = [&](int k, auto j) { return plan(k, j) * (d.get(k, [&] { return gradient(j); }) - alpha); };
    auto column_step = [&](int k, auto j) { return c_inner[j] * fast_exp(x(k, j) + g_inner[j] + f_in); };
    T df = 0;
    if (undoes) each_column<Team, K>(r.m, [&](int k, auto j) { df -= column_step(k, j); });
    df = Team::reduce(df, Sum{}, scratch) + (has_start ? inner : T(0));
    auto inner_steps = [&](int k, auto j) {
      return (undoes ? column_step(k, j) : T(0)) + (undoes_row_step ? df * fast_exp(x(k, j) + potential(g_before, j) + f_in) : T(0));
    };
    auto outer_steps = [&](int k, auto j, int64_t pair, T f_pair, T df_pair) {
      const T xf = x(k, j) + f_pair;
      return r.c[pair * r.m + j] * fast_exp(xf + r.g[pair * r.m + j]) + df_pair * fast_exp(xf + r.g[(pair - 1) * r.m + j]);
    };
    if (!live) continue;
    const int64_t outer = undoes ? pairs : 0;
    if constexpr (K > 0) {
      each_column<Team, K>(r.m, [&](int k, auto j) { d.set(k, direct(k, j) - inner_steps(k, j)); });
      for (int64_t pair = 1; pair < outer; ++pair) {
        const T f_pair = r.f[pair * r.n + row], df_pair = r.df[pair * r.n + row];
        each_column<Team, K>(r.m, [&](int k, auto j) { d.set(k, d.v[k] - outer_steps(k, j, pair, f_pair, df_pair)); });
      }
      each_column<Team, K>(r.m, [&](int k, auto j) { dx.put(dx_begin + row * r.m + j, d.v[k]); });
    } else {
      each_column<Team, K>(r.m, [&](int k, auto j) {
        T ds = direct(k, j) - inner_steps(k, j);
        for (int64_t pair = 1; pair < outer; ++pair) ds -= outer_steps(k, j, pair, r.f[pair * r.n + row], r.df[pair * r.n + row]);
        dx.put(dx_begin + row * r.m + j, ds);
      });
    }
  }
}

}  // namespace sinkgrad::cuda
