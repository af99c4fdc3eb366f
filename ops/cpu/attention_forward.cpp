// Sinkhorn attention forward in the scaling domain: R = exp(S - row maximum) once, then every half-step is a product of R with a
// vector: a = 1 / (R b), b = target / (R^T a). A row half-step and the column sums that follow share one sweep; the last row
// half-step rides in the product with V. What does not fit of R is computed again in each sweep.
// Safe while a_i b_j stays far from overflow, which is checked after every half-step; where it fails, that half-step is done in the log
// domain and the potentials move into R (PERF.md 1.1).
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

/// A stripe lives in the first-level cache, or close to it, where rows are summed and scaled.
constexpr int64_t kStripeBytes = 32 << 10;

template <class T, class U>
class ForwardPass {
 public:
  ForwardPass(const AttentionMatrix<T>& a, T* out, T* plan, ScratchScope& scratch)
      : a_(a), out_(out), plan_(plan), s_(a, (a.task.iterations + 2) / 2, kStripeBytes, scratch), width_(s_.width), l_(a.task.iterations) {
    auto take = [&](int64_t count, T value) {
      T* p = scratch.take<T>(count);
      std::fill_n(p, count, value);
      return p;
    };
    for (T** p : {&scaling_, &top_, &row_shift_, &totals_, &row_logs_}) *p = take(s_.rows, T(0));
    column_scaling_ = take(width_, T(1));
    column_shift_ = take(width_, T(0));
    column_logs_ = take(width_, T(0));
    sums_ = take(s_.chunks * width_, T(0));
    column_tops_ = take(s_.chunks * width_, T(0));
    values_ = scratch.take<U>(elements<U>(a.m) * padded<T>(a.e));
    target_ = s_.valid_columns ? T(s_.valid_rows) / T(s_.valid_columns) : T(1);
    bias_ = s_.key_bias;
    if (s_.wants_next()) s_.ahead.want(out + a.next_o, a.n, a.v_row, a.e);
  }

  bool run() {
    int64_t step = 0;  // half-steps taken
    while (true) {
      const bool last = step + 1 == l_;
      if (!row_step(step, last)) return false;
      ++step;
      if (last) break;
      const bool stops = a_.task.tolerance > 0 && column_error() <= a_.task.tolerance;
      if (!stops) {
        if (!column_step(step)) return false;
        ++step;
      }
      if (stops || step == l_) {
        output_known_ = true;
        row_sweep(true);
        break;
      }
    }
    store_statistics(step);
    std::copy_n(top_, a_.n, a_.row_max);
    return true;
  }

 private:
  T output_scale() const { return a_.task.rows_sum_to_inverse_count && s_.valid_rows ? T(1) / T(s_.valid_rows) : T(1); }
  static Vec<T> either(Vec<T> open, Vec<T> yes, T no) { return hn::IfThenElse(hn::Eq(open, Set(T(0))), Set(no), yes); }

  /// a = 1 / (R b). Where that is not safe, b moves into R and rows are shifted by their maxima anew.
  bool row_step(int64_t step, bool last) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (row_sweep(last)) {
        row_logs();
        put_potentials(a_.state.row + step / 2 * a_.n, row_logs_, a_.n);
        return true;
      }
      column_logs();
      std::copy_n(column_logs_, width_, column_shift_);
      take_shifts();
      fresh_ = true;
    }
    return false;
  }

  /// One walk over R: row sums, their inverses a, and then either the column sums of a R or, in the last sweep, O. Returns false where
  /// the scalings are not safe.
  bool row_sweep(bool last) {
    for (ChunkResult& r : chunk_) r = {};
    std::fill_n(sums_, s_.chunks * width_, T(0));
    if (last) {
      PackRows(a_.m, a_.e, a_.v, a_.v_row, T(1), column_scaling_, values_);
      std::fill_n(column_tops_, s_.chunks * width_, T(0));
    }
    s_.sweep([&](const Stripe<T>& s) HWY_ATTR {
      const T* weight = scaled_ ? column_scaling_ : nullptr;
      if (s.kept) {
        s_.each_group(s, [&](int64_t i, T* x) HWY_ATTR { GroupDot(x, s_.row_length, column_scaling_, width_, totals_ + i); });
      } else {
        s_.compute(s);
        if (fresh_) find_tops(s);
        exponentials(s, weight);
      }
      scale_rows(s);
      T *sums = sums_ + s.chunk * width_, *tops = column_tops_ + s.chunk * width_;
      if (last) {
        s_.each_group(s, [&](int64_t i, T* x) HWY_ATTR { GroupMeasure(scaling_ + i, x, s_.row_length, sums, tops, width_); });
        output(s);
      } else {
        s_.each_group(s, [&](int64_t i, T* x) HWY_ATTR { GroupAdd(scaling_ + i, x, s_.row_length, sums, width_); });
      }
    });
    fresh_ = false;
    merge([](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, sums_);
    largest_row_ = 0;
    bool safe = true;
    for (const ChunkResult& r : chunk_) {
      safe &= r.safe;
      largest_row_ = std::max(largest_row_, r.largest);
      row_error_ = std::max(row_error_, r.row_error);
    }
    if (!safe || unsafe(largest_row_, largest_column_)) {
      s_.forget();
      return false;
    }
    return true;
  }

  /// The maximum of every row of S + bias, and from it the shift that makes it 1 in R.
  void find_tops(const Stripe<T>& s) {
    s_.each_group(s, [&](int64_t i, T* x) HWY_ATTR { GroupMax(x, s_.row_length, bias_, width_, totals_ + i); });
    for (int64_t i = s.begin; i < s.begin + s.count; i += kLanes<T>) {
      const Vec<T> open = Load(s_.row_open + i), top = either(open, Load(totals_ + i), T(0));
      if (!absorbed_) Store(top, top_ + i);
      Store(either(open, hn::Sub(Load(top_ + i), top), kLowest<T>), row_shift_ + i);
    }
  }
  void exponentials(const Stripe<T>& s, const T* weight) {
    s_.each_group(s, [&](int64_t i, T* x) HWY_ATTR { GroupExp(x, s_.row_length, top_ + i, row_shift_ + i, bias_, weight, a_.m, totals_ + i); });
  }

  /// a = 1 / total, 0 for excluded rows; once all scalings are known, how far a R b is from row sums 1 instead.
  void scale_rows(const Stripe<T>& s) {
    ChunkResult& result = chunk_[s.chunk];
    Vec<T> largest = hn::Zero(Tag<T>());
    for (int64_t i = s.begin; i < s.begin + s.count; i += kLanes<T>) {
      const Vec<T> open = Load(s_.row_open + i), total = Load(totals_ + i), one = Set(T(1));
      if (output_known_) {
        largest = hn::Max(largest, either(open, hn::Abs(hn::Sub(hn::Mul(Load(scaling_ + i), total), one)), T(0)));
        continue;
      }
      const auto good = hn::Or(hn::Eq(open, Set(T(0))), hn::And(hn::Gt(total, Set(T(0))), hn::Lt(total, Set(std::numeric_limits<T>::infinity()))));
      result.safe &= hn::AllTrue(Tag<T>(), good);
      const Vec<T> a = either(open, hn::Div(one, total), T(0));
      largest = hn::Max(largest, a);
      Store(a, scaling_ + i);
    }
    T& worst = output_known_ ? result.row_error : result.largest;
    worst = std::max(worst, LargestOf<T>(largest));
  }

  /// b = target / (R^T a) in units of the present R. Where that is not safe, both scalings move into R, columns shifted by their maxima.
  bool column_step(int64_t step) {
    if (!invert_sums()) {
      shift_columns();
      if (!invert_sums()) return false;
    }
    column_logs();
    put_potentials(a_.state.column + step / 2 * a_.m, column_logs_, a_.m);
    return true;
  }
  bool invert_sums() {
    Vec<T> largest = hn::Zero(Tag<T>());
    bool safe = true;
    Vectors<T>(
        width_,
        [&](int64_t j, auto sum, auto open) HWY_ATTR {
          safe &= hn::AllTrue(Tag<T>(), hn::Or(hn::Eq(open, Set(T(0))), hn::Gt(sum, Set(T(0)))));
          const auto b = either(open, hn::Div(Set(target_), sum), T(0));
          largest = hn::Max(largest, b);
          Store(b, column_scaling_ + j);
        },
        sums_, s_.column_open);
    largest_column_ = LargestOf<T>(largest);
    scaled_ = true;
    return safe && !unsafe(largest_row_, largest_column_);
  }
  void shift_columns() {
    row_logs();
    Vectors<T>(
        s_.rows,
        [&](int64_t i, auto open, auto log) HWY_ATTR {
          Store(either(open, log, kLowest<T>), row_shift_ + i);
          Store(open, scaling_ + i);
        },
        s_.row_open, row_logs_);
    std::fill_n(column_tops_, s_.chunks * width_, kLowest<T>);
    s_.forget();
    s_.sweep([&](const Stripe<T>& s) HWY_ATTR {
      s_.compute(s);
      s_.each_group(
          s, [&](int64_t i, T* x) HWY_ATTR { GroupColumnMax(x, s_.row_length, top_ + i, row_shift_ + i, column_tops_ + s.chunk * width_, width_); });
    });
    merge([](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }, column_tops_);
    Vectors<T>(
        width_, [&](int64_t j, auto top) HWY_ATTR { Store(hn::Neg(top), column_shift_ + j); }, column_tops_);
    take_shifts();
    std::fill_n(sums_, s_.chunks * width_, T(0));
    s_.sweep([&](const Stripe<T>& s) HWY_ATTR {
      s_.compute(s);
      exponentials(s, nullptr);
      s_.each_group(s, [&](int64_t i, T* x) HWY_ATTR { GroupAdd(scaling_ + i, x, s_.row_length, sums_ + s.chunk * width_, width_); });
    });
    merge([](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, sums_);
    largest_row_ = 1;
  }

  /// From here on R contains column_shift_, and b starts at 1.
  void take_shifts() {
    Vectors<T>(
        width_,
        [&](int64_t j, auto open, auto shift) HWY_ATTR {
          Store(either(open, shift, kLowest<T>), column_shift_ + j);
          Store(open, column_scaling_ + j);
        },
        s_.column_open, column_shift_);
    bias_ = column_shift_;
    largest_column_ = 1;
    scaled_ = false;
    absorbed_ = true;
    s_.forget();
  }

  /// Base-2 potentials of the present scalings.
  void row_logs() {
    Vectors<T>(
        s_.rows, [&](int64_t i, auto a, auto shift) HWY_ATTR { Store(either(a, hn::Add(Log2<T>(a), shift), T(0)), row_logs_ + i); }, scaling_,
        row_shift_);
  }
  void column_logs() {
    Vectors<T>(
        width_, [&](int64_t j, auto b, auto shift) HWY_ATTR { Store(either(b, hn::Add(Log2<T>(b), shift), T(0)), column_logs_ + j); },
        column_scaling_, column_shift_);
  }
  static void put_potentials(T* to, const T* logs, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = logs[i] * static_cast<T>(kLn2);
  }

  /// Joins what the chunks found, in their order, into the first.
  template <class Op>
  void merge(const Op& op, T* parts) const {
    for (int64_t c = 1; c < s_.chunks; ++c)
      for (int64_t j = 0; j < width_; j += kLanes<T>) Store(op(Load(parts + j), Load(parts + c * width_ + j)), parts + j);
  }

  /// PERF.md 1.1: the scalings of later half-steps stay within 1/max(n, m)^2 of these, so nothing overflows or vanishes before the test.
  bool unsafe(T row, T column) const {
    const T limit = sizeof(T) == 4 ? T(1e30) : T(1e280);
    return !(row * column * T(std::max(a_.n, a_.m)) <= limit);
  }

  /// max_j |b_j sum_j / target - 1| over the visible columns
  double column_error() const {
    double worst = 0;
    for (int64_t j = 0; j < a_.m; ++j)
      if (s_.column_open[j] > T(0)) worst = std::max(worst, std::abs(double(sums_[j]) * double(column_scaling_[j]) / double(target_) - 1));
    return worst;
  }

  /// O = a (R (b V)) for a stripe.
  void output(const Stripe<T>& s) {
    T* factor = totals_ + s.begin;
    for (int64_t i = 0; i < s.count; ++i) factor[i] = scaling_[s.begin + i] * output_scale();
    ScratchScope scratch;
    const Left<U> left = LeftOperand<U>(s.count, a_.m, s.rows, s_.row_length, scratch);
    const int64_t depth = elements<U>(a_.m);
    const Term<U> product{left.at, left.row, left.step, values_, depth * kPanel<T>, depth};
    Product<T>(s.count, a_.e, OutputTile<T>{factor, out_ + s.begin * a_.v_row, a_.v_row, a_.e, false}, s_.ahead, product);
    if (!plan_) return;
    for (int64_t r = 0; r < s.count; ++r) {
      const T* row = s.rows + r * s_.row_length;
      T* to = plan_ + (s.begin + r) * a_.m;
      for (int64_t j = 0; j < a_.m; ++j) to[j] = row[j] * column_scaling_[j] * factor[r];
    }
  }

  void store_statistics(int64_t taken) {
    merge([](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }, column_tops_);
    Vec<T> largest = hn::Zero(Tag<T>());
    Vectors<T>(
        width_, [&](int64_t, auto top, auto b) HWY_ATTR { largest = hn::Max(largest, hn::Mul(top, b)); }, column_tops_, column_scaling_);
    T* stats = a_.state.stats;
    stats[0] = static_cast<T>(taken);
    stats[1] = static_cast<T>(taken % 2 == 1 ? column_error() : double(row_error_));
    stats[2] = LargestOf<T>(largest);
    stats[3] = 0;
  }

  struct ChunkResult {
    bool safe = true;
    T largest = 0, row_error = 0;
  };

  const AttentionMatrix<T>& a_;
  T *out_, *plan_;
  Scores<T, U> s_;
  const int64_t width_, l_;
  // R_ij = 2^(S_ij - top_i + row_shift_i + bias_j), plan = scaling_i R_ij column_scaling_j.
  T *top_, *row_shift_, *scaling_, *totals_, *row_logs_;                          ///< (rows)
  T *column_shift_, *column_scaling_, *column_logs_;                              ///< (width)
  U* values_;                                                                     ///< b V in panels
  T *sums_, *column_tops_;                                                        ///< (chunks, width)
  const T* bias_;                                                                 ///< null, the scores' own, or column_shift_ once absorbed
  bool fresh_ = true, scaled_ = false, absorbed_ = false, output_known_ = false;  ///< fresh: row shifts are to be found; scaled: b is not 1
  ChunkResult chunk_[kMostChunks];
  T target_ = 1, largest_row_ = 0, largest_column_ = 1, row_error_ = 0;
};

template <class U, class T>
bool Forward(const AttentionMatrix<T>& a, T* out, T* plan) {
  ScratchScope scratch;
  return ForwardPass<T, U>(a, out, plan, scratch).run();
}
bool ForwardF32(const AttentionMatrix<float>& a, float* out, float* plan) {
  return with_operand_type(a.precision, [&]<class U>() { return Forward<U>(a, out, plan); });
}
bool ForwardF64(const AttentionMatrix<double>& a, double* out, double* plan) { return Forward<double>(a, out, plan); }

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
