// Sinkhorn on one matrix, forward and backward, in the log domain with every exponent evaluated jointly.
// Scores come with excluded entries set to -inf; an excluded row or column has potential 0, mass 0 and gradient 0.
//
// Notation: x (n, m) scores with each row shifted by its maximum (an exact invariance that keeps potentials small),
// f_k and g_k the potentials of the k-th row and column step, row targets 1, column targets b = rows/columns.
//   row step     f_k = -log sum_j exp(x + g_{k-1})            g_{-1} = 0
//   column step  g_k = log b - log sum_i exp(x + f_k)         plan = exp(x + f + g)
// After a row step every later sum lies within [1/(n m), n m], so only the first column step needs a maximum.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "ops/cpu/sinkhorn_implicit.h"
#include "ops/cpu/vector.h"
#include "ops/sinkhorn_options.h"

namespace sinkgrad::cpu {

/// What one call asks of each of its matrices.
struct SinkhornTask {
  int64_t n, m;
  int64_t iterations;
  double tolerance;
  SinkhornGradient gradient;
  bool rows_sum_to_inverse_count;
  int64_t row_steps() const { return (iterations + 1) / 2; }
  int64_t column_steps() const { return iterations / 2; }
};

/// Where the outcome of a matrix is kept for its backward.
template <class T>
struct SinkhornState {
  T* row;     ///< (row_steps, n): potentials of every row step
  T* column;  ///< (column_steps, m)
  T* stats;   ///< half-steps taken, marginal error, largest entry, residual of the implicit solve
};
constexpr int64_t kSinkhornStats = 4;

template <class T>
class SinkhornMatrix {
 public:
  /// `x` (n, m) is shifted in place by its row maxima. Scratch memory comes from `scratch`.
  SinkhornMatrix(const SinkhornTask& task, T* x, ScratchScope& scratch) : task_(task), n_(task.n), m_(task.m), x_(x) {
    zeros_ = scratch.take<T>(m_);
    shift_ = scratch.take<T>(m_);
    sums_ = scratch.take<T>(m_);
    row_sums_ = scratch.take<T>(n_);
    std::fill_n(zeros_, m_, T(0));
    std::fill_n(shift_, m_, kLowest);
    for (int64_t i = 0; i < n_; ++i) {
      const T top = v_.max(row(i), m_);
      if (top == kLowest) continue;
      ++valid_rows_;
      for (int64_t j = 0; j < m_; ++j) row(i)[j] -= top;
      v_.max_into(row(i), T(0), shift_, m_);
    }
    for (int64_t j = 0; j < m_; ++j) valid_columns_ += shift_[j] != kLowest;
    column_target_ = valid_columns_ ? T(valid_rows_) / T(valid_columns_) : T(1);
  }

  /// Runs the half-steps, fills the state and writes the plan over x.
  void forward(const SinkhornState<T>& s) {
    const T *f = nullptr, *g = zeros_;
    int64_t step = 0;
    bool have_plan = false;
    for (; step < task_.iterations; ++step) {
      if (step % 2 == 0) {
        have_plan = step + 1 == task_.iterations;
        f = row_step(f, g, s.row + step / 2 * n_, have_plan);
      } else {
        sum_columns(f, step == 1 ? nullptr : g);
        if (task_.tolerance > 0 && column_error() <= task_.tolerance) break;
        g = column_step(s.column + step / 2 * m_);
      }
    }
    if (!have_plan)
      for (int64_t i = 0; i < n_; ++i) v_.exp_into(row(i), g, f[i], row(i), m_);
    measure(s, step);
    scale(x_, output_scale());
  }

  /// Recomputes the plan (row sums 1) into `plan` (n, m); x stays.
  void plan(const SinkhornState<T>& s, T* plan) const {
    const auto taken = static_cast<int64_t>(s.stats[0]);
    const T *f = s.row + (taken - 1) / 2 * n_, *g = taken > 1 ? s.column + (taken / 2 - 1) * m_ : zeros_;
    for (int64_t i = 0; i < n_; ++i) v_.exp_into(row(i), g, f[i], plan + i * m_, m_);
  }

  /// Turns d = dL/d(output plan) into dL/d(scores) in place. `p` is the plan with row sums 1.
  void backward(const SinkhornState<T>& s, const T* p, T* d, ScratchScope& scratch) {
    scale(d, output_scale());
    const auto taken = static_cast<int64_t>(s.stats[0]);
    if (task_.gradient == SinkhornGradient::implicit) {
      s.stats[3] = implicit_backward(n_, m_, p, d, scratch);
      return;
    }
    T *df = row_sums_, *dg = sums_, *weights = shift_;
    std::fill_n(dg, m_, T(0));
    int64_t step = taken - 1;
    if (step % 2 == 0) {
      // The last row step belongs to the plan itself: d = p o (d - <p, d>_row).
      for (int64_t i = 0; i < n_; ++i) v_.center_into(p + i * m_, v_.dot(p + i * m_, d + i * m_, m_), d + i * m_, dg, m_);
      --step;
    } else {
      for (int64_t i = 0; i < n_; ++i) {
        for (int64_t j = 0; j < m_; ++j) d[i * m_ + j] *= p[i * m_ + j];
        v_.axpy(T(1), d + i * m_, dg, m_);
        df[i] = v_.sum(d + i * m_, m_);
      }
      if (task_.gradient == SinkhornGradient::frozen) undo_row_step(s, --step, df, dg, d);
    }
    if (task_.gradient == SinkhornGradient::frozen) return;
    if (taken % 2 == 1) std::fill_n(df, n_, T(0));
    for (; step >= 0; --step) {
      if (step % 2 == 0) {
        undo_row_step(s, step, df, dg, d);
        std::fill_n(df, n_, T(0));
      } else {
        const T *f = s.row + step / 2 * n_, *g = s.column + step / 2 * m_;
        for (int64_t j = 0; j < m_; ++j) weights[j] = dg[j] / column_target_;
        for (int64_t i = 0; i < n_; ++i) df[i] -= v_.subtract_column_step(row(i), g, f[i], weights, d + i * m_, m_);
        std::fill_n(dg, m_, T(0));
      }
    }
  }

  /// What the plan is multiplied by: 1, or the inverse count of rows.
  T output_scale() const { return task_.rows_sum_to_inverse_count && valid_rows_ ? T(1) / T(valid_rows_) : T(1); }

 private:
  static constexpr T kLowest = -std::numeric_limits<T>::infinity();

  T* row(int64_t i) const { return x_ + i * m_; }
  bool excluded_row(int64_t i) const { return m_ == 0 || row(i)[0] == kLowest ? v_.max(row(i), m_) == kLowest : false; }

  void scale(T* a, T by) const {
    if (by == T(1)) return;
    for (int64_t i = 0; i < n_ * m_; ++i) a[i] *= by;
  }

  /// f_new = f - log sum_j exp(x + f + g); with `store` the normalised exponentials replace x.
  const T* row_step(const T* f, const T* g, T* f_new, bool store) {
    for (int64_t i = 0; i < n_; ++i) {
      const T before = f ? f[i] : T(0);
      const bool excluded = excluded_row(i);
      const T total = store ? v_.exp_into(row(i), g, before, row(i), m_) : v_.sum_exp(row(i), g, before, m_);
      f_new[i] = excluded ? T(0) : before - std::log(total);
      if (store && !excluded)
        for (int64_t j = 0; j < m_; ++j) row(i)[j] /= total;
    }
    return f_new;
  }

  /// sums_j = sum_i exp(x + f + shift_j) with shift = g, or minus the column's maximum at the first column step.
  void sum_columns(const T* f, const T* g) {
    if (g) {
      std::copy_n(g, m_, shift_);
    } else {
      std::fill_n(shift_, m_, kLowest);
      for (int64_t i = 0; i < n_; ++i) v_.max_into(row(i), f[i], shift_, m_);
      for (int64_t j = 0; j < m_; ++j) shift_[j] = shift_[j] == kLowest ? T(0) : -shift_[j];
    }
    first_column_step_ = g == nullptr;
    std::fill_n(sums_, m_, T(0));
    for (int64_t i = 0; i < n_; ++i) v_.sum_exp_into(row(i), shift_, f[i], sums_, m_);
  }

  /// max_j |column sum / target - 1| of the plan after the row step just taken.
  double column_error() const {
    double worst = 0;
    for (int64_t j = 0; j < m_; ++j)
      if (sums_[j] > 0) {
        const double sum = first_column_step_ ? double(sums_[j]) * std::exp(-double(shift_[j])) : double(sums_[j]);
        worst = std::max(worst, std::abs(sum / double(column_target_) - 1));
      }
    return worst;
  }

  const T* column_step(T* g) {
    for (int64_t j = 0; j < m_; ++j) g[j] = sums_[j] > 0 ? shift_[j] + std::log(column_target_) - std::log(sums_[j]) : T(0);
    return g;
  }

  void undo_row_step(const SinkhornState<T>& s, int64_t step, const T* df, T* dg, T* d) {
    const T *f = s.row + step / 2 * n_, *g = step > 0 ? s.column + (step / 2 - 1) * m_ : zeros_;
    for (int64_t i = 0; i < n_; ++i) v_.subtract_row_step(row(i), g, f[i], df[i], d + i * m_, dg, m_);
  }

  /// Fills the statistics from the plan in x.
  void measure(const SinkhornState<T>& s, int64_t taken) {
    T largest = 0;
    double worst = 0;
    std::fill_n(sums_, m_, T(0));
    for (int64_t i = 0; i < n_; ++i) {
      largest = std::max(largest, v_.max(row(i), m_));
      v_.axpy(T(1), row(i), sums_, m_);
      const T total = taken % 2 == 0 ? v_.sum(row(i), m_) : T(0);
      if (taken % 2 == 0 && total > 0) worst = std::max(worst, std::abs(double(total) - 1));
    }
    if (taken % 2 == 1)
      for (int64_t j = 0; j < m_; ++j)
        if (valid_columns_ == m_ || sums_[j] > 0) worst = std::max(worst, std::abs(double(sums_[j] / column_target_) - 1));
    s.stats[0] = static_cast<T>(taken);
    s.stats[1] = static_cast<T>(worst);
    s.stats[2] = largest;
    s.stats[3] = 0;
  }

  const VectorMath<T>& v_ = vector_math<T>();
  SinkhornTask task_;
  int64_t n_, m_, valid_rows_ = 0, valid_columns_ = 0;
  T column_target_ = 1;
  T *x_, *zeros_, *shift_, *sums_, *row_sums_;
  bool first_column_step_ = false;
};

}  // namespace sinkgrad::cpu
