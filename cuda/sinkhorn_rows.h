// Rows of one matrix and the threads that visit them. A sweep visits every row of a stripe once: a team reduces the row and at once
// adds what follows from it to column sums that its threads keep in registers. So a row step and the column step after it cost one
// reading of the scores.
#pragma once
#include "cuda/sinkhorn_call.h"

namespace sinkgrad::cuda {

/// The threads that share a row: `lanes` neighbours within a warp, or a whole block of that many threads.
template <int lanes>
struct RowTeam {
  static constexpr bool kIsBlock = lanes > kWarp;
  static constexpr int kSize = lanes;
  static __device__ int rank() { return static_cast<int>(threadIdx.x) % lanes; }
  static __device__ int index() { return kIsBlock ? 0 : static_cast<int>(threadIdx.x) / lanes; }
  static __device__ int count() { return kIsBlock ? 1 : static_cast<int>(blockDim.x) / lanes; }
  /// The combination over the team, in each of its threads; `scratch` has an element per warp.
  template <class T, class Op>
  static __device__ T reduce(T v, Op op, const Shared<T>& scratch) {
    if constexpr (kIsBlock)
      return block_reduce(v, op, scratch);
    else
      return warp_reduce(v, op, lanes);
  }
};

/// Calls f(k, j) for the k-th column j of this thread: at most K of them, or any number when K = 0. Short rows leave early, by a branch
/// that all threads take.
template <class Team, int K, class F>
__device__ void each_column(int64_t m, F f) {
  if constexpr (K > 0) {
    constexpr int group = 4;
    static_assert(K % group == 0);
#pragma unroll
    for (int begin = 0; begin < K; begin += group) {
      if (begin * Team::kSize >= m) break;
#pragma unroll
      for (int k = begin; k < begin + group; ++k) {
        const int j = Team::rank() + k * Team::kSize;
        if (j < m) f(k, j);
      }
    }
  } else {
    for (int64_t j = Team::rank(); j < m; j += Team::kSize) f(0, j);
  }
}

/// Elements of a row that a thread holds at most, in one tile of registers.
template <class T>
constexpr int kMostHeld = 64 / sizeof(T);

/// A value for each column of this thread, in registers; nothing when K = 0, where get() computes it again.
template <class T, int K>
struct Tile {
  T v[K > 0 ? K : 1];
  __device__ void set(int k, T x) {
    if constexpr (K > 0) v[k] = x;
  }
  template <class F>
  __device__ T get(int k, F compute) const {
    if constexpr (K > 0) return v[k];
    return compute();
  }
};

/// Column sums in memory: plain ones in `sum`, those of exponentials with their maximum in `max`.
template <class Memory>
struct ColumnStore {
  Memory sum, max;
  template <class I, class T>
  __device__ void put(I j, T v) const {
    sum[j] = v;
  }
  template <class I, class T>
  __device__ void put(I j, const LogSum<T>& v) const {
    sum[j] = v.sum;
    max[j] = v.max;
  }
  template <class A, class I>
  __device__ A get(I j) const {
    if constexpr (std::is_floating_point_v<A>)
      return sum[j];
    else
      return A{max[j], sum[j]};
  }
};
template <class T>
using StripeSums = ColumnStore<Span<T>>;

/// What a thread adds up for its columns: in registers or, when K = 0, in its own elements of `memory`.
template <class T, class A, int K>
struct Columns {
  A held[K > 0 ? K : 1];
  StripeSums<T> memory;

  template <class Team>
  __device__ void clear(int64_t m) {
    each_column<Team, K>(m, [&](int k, auto j) {
      if constexpr (K > 0)
        held[k] = none();
      else
        memory.put(j, none());
    });
  }
  template <class I, class F>
  __device__ void update(int k, I j, F f) {
    if constexpr (K > 0)
      held[k] = f(held[k]);
    else
      memory.put(j, f(memory.template get<A>(j)));
  }
  static __device__ A none() {
    if constexpr (std::is_floating_point_v<A>)
      return A(0);
    else
      return no_terms<T>();
  }
};

// A column sum, whichever way it was added up.
template <class T>
__device__ T merge(T a, T b) {
  return a + b;
}
template <class T>
__device__ LogSum<T> merge(const LogSum<T>& a, const LogSum<T>& b) {
  return LogSumMerge{}(a, b);
}
template <class T>
__device__ T mass(T s) {
  return s;
}
template <class T>
__device__ T mass(const LogSum<T>& s) {
  return s.sum * exp(s.max);
}
/// The potential after a column step, from the one before it; 0 for a column without entries.
template <class T>
__device__ T column_potential(T s, T before, T target) {
  return s == T(0) ? T(0) : before + log(target) - log(s);
}
template <class T>
__device__ T column_potential(const LogSum<T>& s, T, T target) {
  return s.sum == T(0) ? T(0) : log(target) - s.max - log(s.sum);
}

/// Calls sink(j, sum over the block) for every column, by the thread that has it: teams meet in `partial`, (teams, m). A block
/// that is one team has its sums already; those that lie in memory stay there.
template <class Team, int K, class T, class A, class Sink>
__device__ void combine_teams(const Columns<T, A, K>& sums, const ColumnStore<Shared<T>>& partial, int64_t m, Sink sink) {
  if constexpr (Team::kIsBlock) {
    if constexpr (K > 0) each_column<Team, K>(m, [&](int k, auto j) { sink(j, sums.held[k]); });
  } else {
    const int width = static_cast<int>(m);
    each_column<Team, K>(m, [&](int k, auto j) { partial.put(Team::index() * width + j, sums.held[k]); });
    block_sync();
    for (int j = static_cast<int>(threadIdx.x); j < width; j += static_cast<int>(blockDim.x)) {
      A s = partial.template get<A>(j);
      for (int t = 1; t < Team::count(); ++t) s = merge(s, partial.template get<A>(t * width + j));
      sink(j, s);
    }
  }
}

/// Rows first .. first+count-1 of the scores, read from global memory at every visit. x is a score minus the maximum of its row.
template <class T>
struct StreamedRows {
  static constexpr bool kReadsScores = true;
  MaskedScores<T> scores;
  Span<T> shifts;  ///< (n): row maxima, kept by the first visit
  int64_t first, count;
  __device__ T shift(int64_t i) const { return shifts[first + i]; }
  __device__ void keep_shift(int64_t i, T v) const {
    if (shifts) shifts[first + i] = v;
  }
  __device__ void keep(int64_t, int64_t, T) const {}
  __device__ T x(int64_t i, int64_t j, T shift) const { return scores(first + i, j) - shift; }
};

/// The same rows, read from global memory once and held in shared memory as x.
template <class T>
struct ResidentRows {
  static constexpr bool kReadsScores = false;
  MaskedScores<T> scores;
  Shared<T> held;
  int pitch;
  int64_t first, count;
  __device__ T shift(int64_t) const { return 0; }
  __device__ void keep_shift(int64_t, T) const {}
  __device__ void keep(int64_t i, int64_t j, T x) const { held[static_cast<int>(i) * pitch + static_cast<int>(j)] = x; }
  __device__ T x(int64_t i, int64_t j, T) const { return held[static_cast<int>(i) * pitch + static_cast<int>(j)]; }
};

/// Scores of row i to its team: all loads first, then what masks exclude. -inf below the stripe.
template <class Team, int K, class T, class Rows>
__device__ void fetch_scores(const Rows& rows, int64_t i, int64_t m, Tile<T, K>& x) {
  const MaskedScores<T>& scores = rows.scores;
  const int64_t row = rows.first + i;
  const bool live = i < rows.count;
  each_column<Team, K>(m, [&](int k, auto j) { x.set(k, live ? static_cast<T>(scores.values[row * m + j]) : -infinity<T>()); });
  if (live && scores.any_mask())
    each_column<Team, K>(m, [&](int k, auto j) {
      if (scores.excluded(row, j)) x.set(k, -infinity<T>());
    });
}

/// Brings x of row i to its team and returns the maximum that was subtracted. The `first` visit finds it.
template <bool first, class Team, int K, class T, class Rows>
__device__ T fetch(const Rows& rows, int64_t i, int64_t m, Tile<T, K>& x, const Shared<T>& scratch) {
  const bool live = i < rows.count;
  T shift = 0;
  if constexpr (K > 0 && (first || Rows::kReadsScores)) fetch_scores<Team>(rows, i, m, x);
  if constexpr (first) {
    T top = -infinity<T>();
    each_column<Team, K>(m, [&](int k, auto j) { top = Max{}(top, x.get(k, [&] { return rows.scores(rows.first + i, j); })); });
    top = Team::reduce(top, Max{}, scratch);
    shift = top == -infinity<T>() ? T(0) : top;
    if (live && Team::rank() == 0) rows.keep_shift(i, shift);
  } else if (live) {
    shift = rows.shift(i);
  }
  if constexpr (K > 0)
    each_column<Team, K>(m, [&](int k, auto j) {
      if constexpr (first || Rows::kReadsScores)
        x.set(k, x.v[k] - shift);
      else
        x.set(k, live ? rows.x(i, j, shift) : -infinity<T>());
      if (first && live) rows.keep(i, j, x.v[k]);
    });
  return shift;
}

/// A potential that is zero before the first column step.
template <class T, class I>
__device__ T potential(const Span<T>& g, I j) {
  return g ? static_cast<T>(g[j]) : T(0);
}

/// What one sweep of the forward does.
template <class T>
struct ForwardStep {
  Span<T> before;  ///< (n) f before it; absent in the first sweep
  Span<T> g;       ///< (m); absent in the first sweep
  Span<T> f;       ///< (n) where a row step puts its potentials; absent: no row step
  Span<T> plan;    ///< (n, m); absent: not written
  T scale;         ///< of the plan
};
/// Largest entry and row error of the plan with row sums 1.
template <class T>
struct Extremes {
  T largest = 0, row_error = 0;
};

/// Row step, plan, and column sums of the plan. The first sweep takes them as sums of exponentials, since a column may be far below
/// the row maxima; after a row step every later sum lies within [1 / (n m), n m].
template <bool first, class Team, int K, class T, class A, class Rows>
__device__ void forward_sweep(const Rows& rows, int64_t m, const ForwardStep<T>& s, Columns<T, A, K>& sums, Extremes<T>& extremes,
                              const Shared<T>& scratch) {
  sums.template clear<Team>(m);
  for (int64_t base = 0; base < rows.count; base += Team::count()) {
    const int64_t i = base + Team::index(), row = rows.first + i;
    const bool live = i < rows.count;
    Tile<T, K> e;
    const T shift = fetch<first, Team>(rows, i, m, e, scratch);
    T before = 0;
    if constexpr (!first)
      if (live) before = s.before[row];
    auto exponential = [&](int k, auto j) {
      const T x = e.get(k, [&] { return rows.x(i, j, shift); });
      if constexpr (first) return fast_exp(x);
      return fast_exp(x + potential(s.g, j) + before);
    };
    T total = 0;
    each_column<Team, K>(m, [&](int k, auto j) {
      const T v = exponential(k, j);
      total += v;
      if constexpr (!first) e.set(k, v);
    });
    total = Team::reduce(total, Sum{}, scratch);
    T f = before, factor = 1;
    if (s.f) {  // an excluded row has total 0, potential 0 and mass 0
      f = total == T(0) ? T(0) : before - log(total);
      factor = total == T(0) ? T(0) : T(1) / total;
      if (live && Team::rank() == 0) s.f[row] = f;
    } else if (total > T(0)) {
      extremes.row_error = maximum<T>(extremes.row_error, fabs(total - T(1)));
    }
    each_column<Team, K>(m, [&](int k, auto j) {
      T p = 0;
      if constexpr (first) {
        const T x = e.get(k, [&] { return rows.x(i, j, shift); });
        sums.update(k, j, [&](const A& a) { return add_exp(a, x + f); });
        if (s.plan) p = fast_exp(x) * factor;
      } else {
        p = e.get(k, [&] { return exponential(k, j); }) * factor;
        sums.update(k, j, [&](A a) { return a + p; });
      }
      if (s.plan && live) {
        s.plan[row * m + j] = p * s.scale;
        extremes.largest = maximum(extremes.largest, p);
      }
    });
  }
}

}  // namespace sinkgrad::cuda
