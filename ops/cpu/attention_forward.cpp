// Sinkhorn attention forward in the scaling domain: R = exp(S - row maximum) once, then every half-step is a product of R with a
// vector: a = 1 / (R b), b = target / (R^T a). A row half-step and the column sums that follow share one sweep; the last row
// half-step rides in the product with V. Where R does not fit it is computed again in each sweep, with the potentials folded in.
// Safe while a_i b_j stays far from overflow, which is checked after every half-step (see unsafe()).
#include "ops/cpu/attention_matrix.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "ops/cpu/attention_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {

template <class T>
class ForwardPass {
 public:
  ForwardPass(const AttentionMatrix<T>& a, T* out, T* plan, ScratchScope& scratch)
      : a_(a), out_(out), plan_(plan), s_(a, a.task.iterations > 1, scratch), l_(a.task.iterations) {
    const int64_t rows = padded<T>(a.n), width = s_.width;
    auto take = [&](int64_t count, T value) {
      T* p = scratch.take<T>(count);
      std::fill_n(p, count, value);
      return p;
    };
    scaling_ = take(rows, T(0));
    row_shift_ = take(rows, T(0));
    sums_ = take(width, T(0));
    column_scaling_ = take(width, T(1));
    column_shift_ = take(width, T(0));
    logs_ = take(std::max(rows, width), T(0));
    values_ = scratch.take<T>(a.m * padded<T>(a.e));
    product_ = scratch.take<T>(s_.stripe * padded<T>(a.e));
    target_ = s_.valid_columns ? T(s_.valid_rows) / T(s_.valid_columns) : T(1);
    for (int64_t j = 0; j < width; ++j)
      if (!visible(j)) column_scaling_[j] = 0;
  }

  bool run() {
    int64_t step = 0;  // half-steps taken
    bool done = false;
    while (!done) {
      const bool last = step + 1 == l_;
      if (!row_sweep(step, last)) return false;
      ++step;
      if (last || step == l_) break;
      if (a_.task.tolerance > 0 && column_error() <= a_.task.tolerance) {
        finish();
        break;
      }
      if (!column_step(step)) return false;
      ++step;
      if (step == l_) {
        finish();
        break;
      }
    }
    store_statistics(step);
    return true;
  }

 private:
  bool visible(int64_t j) const { return j < a_.m && !(a_.keys && a_.keys[j]); }
  T output_scale() const { return a_.task.rows_sum_to_inverse_count && s_.valid_rows ? T(1) / T(s_.valid_rows) : T(1); }

  /// Rows i .. i+count-1 of R in its present form; in the first sweep computed with the row maxima taken out.
  T* stripe(int64_t i, int64_t count, bool first) {
    if (s_.resident && !first) return s_.rows(i);
    T* r = s_.compute(i, count);
    const T* bias = first ? s_.key_bias : column_shift_;
    for (int64_t k = 0; k < count; ++k) row_sum_[k] = s_.exponentials(i + k, r + k * s_.row_length, row_shift_[i + k], bias);
    return r;
  }

  /// a = 1 / (R b); then either the column sums of a R or, in the last sweep, O.
  bool row_sweep(int64_t step, bool last) {
    const bool first = step == 0, fresh = first || !s_.resident;
    std::fill_n(sums_, s_.width, T(0));
    if (last) pack_values();
    T largest = 0;
    bool safe = true;
    for (int64_t i = 0; i < a_.n; i += s_.stripe) {
      const int64_t count = std::min(s_.stripe, a_.n - i);
      T* r = stripe(i, count, first);
      for (int64_t k = 0; k < count; ++k) {
        const T* row = r + k * s_.row_length;
        const T total = fresh ? row_sum_[k] : RowDot(row, column_scaling_, s_.width);
        const bool excluded = total == T(0) && (s_.excluded(i + k) || s_.valid_columns == 0 || a_.pairs);
        T& scaling = scaling_[i + k];
        scaling = excluded ? T(0) : T(1) / total;
        safe &= excluded || (total > T(0) && scaling > T(0) && scaling < std::numeric_limits<T>::infinity());
        largest = std::max(largest, scaling);
        if (!last) RowAdd(scaling, row, sums_, s_.width);
      }
      if (last) output(i, count, r);
    }
    if (!safe || unsafe(largest, largest_column_)) return false;
    largest_row_ = largest;
    record_rows(step / 2);
    return true;
  }

  /// b = target / (R^T a) in units of the present R.
  bool column_step(int64_t step) {
    T largest = 0;
    bool safe = true;
    for (int64_t j = 0; j < s_.width; ++j) {
      const bool open = visible(j) && s_.valid_rows > 0;
      column_scaling_[j] = open ? target_ / sums_[j] : T(0);
      safe &= !open || (sums_[j] > T(0) && column_scaling_[j] < std::numeric_limits<T>::infinity());
      largest = std::max(largest, column_scaling_[j]);
    }
    if (!safe || unsafe(largest_row_, largest)) return false;
    largest_column_ = largest;
    Map(s_.width, column_scaling_, logs_, [](auto x) HWY_ATTR { return Log2<T>(x); });
    T* g = a_.state.column + step / 2 * a_.m;
    for (int64_t j = 0; j < a_.m; ++j) {
      const T total = visible(j) ? logs_[j] + (s_.resident ? T(0) : column_shift_[j]) : T(0);
      g[j] = total * static_cast<T>(kLn2);
    }
    if (!s_.resident) absorb();
    return true;
  }

  /// Folds both scalings into the shifts from which the next sweep's R is computed.
  void absorb() {
    for (int64_t j = 0; j < s_.width; ++j) {
      column_shift_[j] = visible(j) ? column_shift_[j] + logs_[j] : kLowest<T>;
      if (visible(j)) column_scaling_[j] = 1;
    }
    Map(padded<T>(a_.n), scaling_, logs_, [](auto x) HWY_ATTR { return Log2<T>(x); });
    for (int64_t i = 0; i < a_.n; ++i) {
      if (scaling_[i] > T(0)) row_shift_[i] += logs_[i];
      scaling_[i] = scaling_[i] > T(0) ? T(1) : T(0);
    }
    largest_row_ = largest_column_ = 1;
  }

  void record_rows(int64_t k) {
    Map(padded<T>(a_.n), scaling_, logs_, [](auto x) HWY_ATTR { return Log2<T>(x); });
    T* f = a_.state.row + k * a_.n;
    for (int64_t i = 0; i < a_.n; ++i) f[i] = scaling_[i] > T(0) ? (row_shift_[i] + logs_[i]) * static_cast<T>(kLn2) : T(0);
  }

  /// PERF.md 1.1: the scalings of later half-steps stay within 1/max(n, m)^2 of these, so nothing overflows or vanishes before the test.
  bool unsafe(T row, T column) const {
    const T limit = sizeof(T) == 4 ? T(1e30) : T(1e280);
    return !(row * column * T(std::max(a_.n, a_.m)) <= limit);
  }

  double column_error() const {
    double worst = 0;
    for (int64_t j = 0; j < a_.m; ++j)
      if (visible(j) && s_.valid_rows > 0)
        worst = std::max(worst, std::abs(double(sums_[j]) * (s_.resident ? double(column_scaling_[j]) : 1.0) / double(target_) - 1));
    return worst;
  }

  void pack_values() {
    PackRows(a_.m, a_.e, a_.v, a_.v_row, T(1), column_scaling_, values_);
    std::fill_n(sums_, s_.width, T(0));
  }

  /// O = a (R (b V)) for a stripe, and what the statistics need of the plan.
  void output(int64_t i, int64_t count, const T* r) {
    const int64_t e_row = padded<T>(a_.e);
    Product(count, a_.m, r, s_.row_length, 1, values_, a_.m * kPanel<T>, a_.e, product_, e_row, false);
    for (int64_t k = 0; k < count; ++k) {
      const T factor = scaling_[i + k] * output_scale();
      ScaledCopy(a_.e, product_ + k * e_row, factor, out_ + (i + k) * a_.v_row, false);
      const T* row = r + k * s_.row_length;
      largest_entry_ = std::max(largest_entry_, RowMeasure(row, scaling_[i + k], column_scaling_, sums_, s_.width));
      if (row_total_wanted_ && scaling_[i + k] > T(0))
        row_error_ = std::max(row_error_, std::abs(double(scaling_[i + k] * RowDot(row, column_scaling_, s_.width)) - 1));
      if (plan_)
        for (int64_t j = 0; j < a_.m; ++j) plan_[(i + k) * a_.m + j] = row[j] * column_scaling_[j] * factor;
    }
  }

  /// O for scalings that are all known: after an even number of half-steps, or a stop.
  void finish() {
    row_total_wanted_ = true;
    pack_values();
    for (int64_t i = 0; i < a_.n; i += s_.stripe) {
      const int64_t count = std::min(s_.stripe, a_.n - i);
      output(i, count, stripe(i, count, false));
    }
  }

  void store_statistics(int64_t taken) {
    double worst = 0;
    if (taken % 2 == 1) {
      for (int64_t j = 0; j < a_.m; ++j)
        if (s_.valid_columns == a_.m || sums_[j] > T(0)) worst = std::max(worst, std::abs(double(sums_[j] / target_) - 1));
    } else {
      worst = row_error_;
    }
    T* stats = a_.state.stats;
    stats[0] = static_cast<T>(taken);
    stats[1] = static_cast<T>(worst);
    stats[2] = largest_entry_;
    stats[3] = 0;
  }

  const AttentionMatrix<T>& a_;
  T *out_, *plan_;
  Scores<T> s_;
  const int64_t l_;
  T *scaling_, *row_shift_, *sums_, *column_scaling_, *column_shift_, *logs_, *values_, *product_;
  T row_sum_[48];
  T target_ = 1, largest_row_ = 0, largest_column_ = 1, largest_entry_ = 0;
  double row_error_ = 0;
  bool row_total_wanted_ = false;
};

template <class T>
bool Forward(const AttentionMatrix<T>& a, T* out, T* plan) {
  ScratchScope scratch;
  return ForwardPass<T>(a, out, plan, scratch).run();
}
bool ForwardF32(const AttentionMatrix<float>& a, float* out, float* plan) { return Forward(a, out, plan); }
bool ForwardF64(const AttentionMatrix<double>& a, double* out, double* plan) { return Forward(a, out, plan); }

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinkgrad::cpu {
HWY_EXPORT(ForwardF32);
HWY_EXPORT(ForwardF64);

template <>
bool attention_forward(const AttentionMatrix<float>& a, float* out, float* plan) {
  return HWY_DYNAMIC_DISPATCH(ForwardF32)(a, out, plan);
}
template <>
bool attention_forward(const AttentionMatrix<double>& a, double* out, double* plan) {
  return HWY_DYNAMIC_DISPATCH(ForwardF64)(a, out, plan);
}
}  // namespace sinkgrad::cpu
#endif
