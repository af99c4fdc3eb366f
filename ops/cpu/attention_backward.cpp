// Sinkhorn attention backward from potentials alone. Every half-step's plan is a rank-one rescaling of the final plan P, so with
// dP = dO V^T the score gradient is dS = P o (dP - A B^T), A (n, r) and B (m, r) with a column or two per half-step:
//   delta_i = dO_i . O_i      A = [delta], B = [1]
//   h_j     = V_j . dV_j - sum_i P_ij delta_i                 dV = P^T dO
//   for row steps t = l-2, l-4, ..., 1 (after column step t+1, potentials f_t, g_{t+1}, g_{t-1}; the last are f, g):
//     rho = exp(f_t - f)   G = (h / target) exp(g_{t+1} - g)   gamma = exp(g_{t-1} - g)
//     df  = -rho o (P G)    A += [rho, rho o df]   B += [G, gamma]   h = -gamma o (P^T (rho o df))
// The columns of A and B ride in the product dO V^T. Derivation: SPEC.md 4, PERF.md 1.3.
#include "ops/cpu/attention_matrix.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "ops/cpu/attention_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {

template <class T>
class BackwardPass {
 public:
  BackwardPass(const AttentionMatrix<T>& a, const T* out, const T* d_out, const AttentionGradients<T>& gradients, ScratchScope& scratch)
      : a_(a), out_(out), d_out_(d_out), to_(gradients), s_(a, a.task.iterations > 1, scratch), scratch_(scratch), n_(a.n), m_(a.m) {
    taken_ = static_cast<int64_t>(a.state.stats[0]);
    target_ = s_.valid_columns ? T(s_.valid_rows) / T(s_.valid_columns) : T(1);
    output_scale_ = a.task.rows_sum_to_inverse_count && s_.valid_rows ? T(1) / T(s_.valid_rows) : T(1);
    for (T** p : {&f_, &delta_, &df_, &rho_}) *p = zeros(padded<T>(n_));
    for (T** p : {&g_, &h_, &column_, &gamma_}) *p = zeros(s_.width);
  }

  bool run() {
    last_row_ = a_.state.row + (taken_ - 1) / 2 * n_;
    last_column_ = taken_ > 1 ? a_.state.column + (taken_ / 2 - 1) * m_ : nullptr;
    if (drifts()) return false;
    for (int64_t i = 0; i < n_; ++i) f_[i] = last_row_[i] * static_cast<T>(kLog2E);
    for (int64_t j = 0; j < s_.width; ++j)
      g_[j] = j < m_ && !(a_.keys && a_.keys[j]) ? (last_column_ ? last_column_[j] * static_cast<T>(kLog2E) : T(0)) : kLowest<T>;
    for (int64_t i = 0; i < n_; ++i) delta_[i] = AnyDot(a_.e, d_out_ + i * a_.v_row, out_ + i * a_.v_row);
    const bool scores_wanted = to_.dq || to_.dk;
    plan_ranks(scores_wanted);
    d_values_ = zeros(m_ * padded<T>(a_.e));
    d_out_panels_ = scratch_.template take<T>(n_ * padded<T>(a_.e));
    PackRows<T>(n_, a_.e, d_out_, a_.v_row, output_scale_, nullptr, d_out_panels_);

    // With one half-step, or frozen columns, nothing has to be known of all rows before the scores' gradient: one sweep does it all.
    if (scores_wanted) begin_scores();
    if (!scores_wanted || first_step_ < 0) {
      if (scores_wanted) push_first();
      sweep([&](int64_t i, int64_t count, T* p) HWY_ATTR {
        add_d_values(i, count, p);
        if (scores_wanted) d_scores(i, count, p);
      });
      if (scores_wanted) store_scores();
    } else {
      reverse();
    }
    if (to_.dv) put(d_values_, padded<T>(a_.e), m_, a_.e, T(1), to_.dv, a_.v_row, to_.add_v);
    return true;
  }

 private:
  T* zeros(int64_t count) {
    T* p = scratch_.template take<T>(count);
    std::fill_n(p, count, T(0));
    return p;
  }

  /// Whether e^(f_t - f) or e^(g_t - g) could leave the range of the rank-one form.
  bool drifts() const {
    constexpr T kLimit = 40;
    for (int64_t k = 0; k < (taken_ + 1) / 2; ++k)
      for (int64_t i = 0; i < n_; ++i)
        if (!(std::abs(a_.state.row[k * n_ + i] - last_row_[i]) <= kLimit)) return true;
    for (int64_t k = 0; k < taken_ / 2; ++k)
      for (int64_t j = 0; j < m_; ++j)
        if (!(std::abs(a_.state.column[k * m_ + j] - last_column_[j]) <= kLimit)) return true;
    for (int64_t j = 0; last_column_ && j < m_; ++j)
      if (!(std::abs(last_column_[j]) <= kLimit)) return true;
    return false;
  }

  /// The row steps to be undone, last first, and the rank they and the final half-step take.
  void plan_ranks(bool scores_wanted) {
    rank_ = 1;
    if (!scores_wanted || taken_ == 1) return;
    const bool frozen = a_.task.gradient == SinkhornGradient::frozen;
    if (frozen && taken_ % 2 == 1) return;
    if (frozen) {
      frozen_even_ = true;
      return;
    }
    first_step_ = (taken_ + 1) / 2 - (taken_ % 2 == 1 ? 2 : 1);
    rank_ = taken_ % 2 + 2 * (first_step_ + 1);
  }

  /// Calls body(i, count, p) for stripes of the plan, keeping it where it is resident.
  template <class Body>
  void sweep(Body body) {
    for (int64_t i = 0; i < n_; i += s_.stripe) {
      const int64_t count = std::min(s_.stripe, n_ - i);
      T* p = s_.rows(i);
      if (!computed_) {
        p = s_.compute(i, count);
        for (int64_t k = 0; k < count; ++k) s_.exponentials(i + k, p + k * s_.row_length, f_[i + k], g_);
      }
      body(i, count, p);
    }
    computed_ = s_.resident;
  }

  void add_d_values(int64_t i, int64_t count, const T* p) {
    for (int64_t c = 0; c < a_.e; c += kPanel<T>)
      Product(m_, count, p, 1, s_.row_length, d_out_panels_ + c * n_ + i * kPanel<T>, int64_t{0}, std::min(kPanel<T>, a_.e - c), d_values_ + c,
              padded<T>(a_.e), true);
  }

  void begin_scores() {
    depth_ = a_.e + rank_;
    right_ = scratch_.template take<T>(depth_ * s_.width);
    PackTransposed(a_.e, m_, a_.v, a_.v_row, right_, depth_ * kPanel<T>);
    left_ = zeros(n_ * rank_);
    left_stripe_ = scratch_.template take<T>(s_.stripe * depth_);
    d_plan_ = scratch_.template take<T>(s_.stripe * s_.row_length);
    const int64_t d_row = padded<T>(a_.d);
    if (to_.dq) {
      keys_ = scratch_.template take<T>(m_ * d_row);
      PackRows<T>(m_, a_.d, a_.k, a_.q_row, a_.scale, nullptr, keys_);
      d_query_ = scratch_.template take<T>(s_.stripe * d_row);
    }
    if (to_.dk) {
      queries_ = scratch_.template take<T>(n_ * d_row);
      PackRows<T>(n_, a_.d, a_.q, a_.q_row, a_.scale, nullptr, queries_);
      d_keys_ = zeros(m_ * d_row);
    }
  }

  /// Column `at` of B.
  void set_right(int64_t at, const T* values) {
    for (int64_t j = 0; j < s_.width; j += kPanel<T>) std::copy_n(values + j, kPanel<T>, right_ + j * depth_ + (a_.e + at) * kPanel<T>);
  }
  void set_left(int64_t at, const T* values) {
    for (int64_t i = 0; i < n_; ++i) left_[i * rank_ + at] = -values[i];
  }
  /// The last row half-step (softmax's form), or that of a frozen gradient that ends on columns.
  void push_first() {
    set_left(0, delta_);
    if (frozen_even_)
      ratio(previous_column((taken_ + 1) / 2 - 1), last_column_, m_, column_);
    else
      std::fill_n(column_, s_.width, T(1));
    set_right(0, column_);
  }

  /// dS = P o (dP - A B^T) for a stripe, and its share of dQ and dK.
  void d_scores(int64_t i, int64_t count, const T* p) {
    for (int64_t k = 0; k < count; ++k) {
      T* to = left_stripe_ + k * depth_;
      ScaledCopy(a_.e, d_out_ + (i + k) * a_.v_row, output_scale_, to, false);
      std::copy_n(left_ + (i + k) * rank_, rank_, to + a_.e);
    }
    Product(count, depth_, left_stripe_, depth_, 1, right_, depth_ * kPanel<T>, m_, d_plan_, s_.row_length, false);
    for (int64_t k = 0; k < count; ++k) RowMultiply(p + k * s_.row_length, d_plan_ + k * s_.row_length, padded_vectors());
    const int64_t d_row = padded<T>(a_.d);
    if (to_.dq) {
      Product(count, m_, d_plan_, s_.row_length, 1, keys_, m_ * kPanel<T>, a_.d, d_query_, d_row, false);
      put(d_query_, d_row, count, a_.d, T(1), to_.dq + i * a_.q_row, a_.q_row, to_.add_q);
    }
    if (to_.dk)
      for (int64_t c = 0; c < a_.d; c += kPanel<T>)
        Product(m_, count, d_plan_, 1, s_.row_length, queries_ + c * n_ + i * kPanel<T>, int64_t{0}, std::min(kPanel<T>, a_.d - c), d_keys_ + c,
                d_row, true);
  }
  int64_t padded_vectors() const { return (m_ + kLanes<T> - 1) / kLanes<T> * kLanes<T>; }

  void store_scores() {
    if (to_.dk) put(d_keys_, padded<T>(a_.d), m_, a_.d, T(1), to_.dk, a_.q_row, to_.add_k);
  }

  void put(const T* from, int64_t from_row, int64_t rows, int64_t columns, T factor, T* to, int64_t to_row, bool add) {
    for (int64_t i = 0; i < rows; ++i) ScaledCopy(columns, from + i * from_row, factor, to + i * to_row, add);
  }

  /// out = exp(a - b); a null a stands for zeros.
  void ratio(const T* a, const T* b, int64_t count, T* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = ((a ? a[i] : T(0)) - (b ? b[i] : T(0))) * static_cast<T>(kLog2E);
    Map(count, out, out, [](auto x) HWY_ATTR { return Exp2<T>(x); });
  }
  /// Column potentials before row step k; null before the first.
  const T* previous_column(int64_t k) const { return k > 0 ? a_.state.column + (k - 1) * m_ : nullptr; }

  /// The sweeps of an unrolled gradient over two or more half-steps.
  void reverse() {
    const bool odd = taken_ % 2 == 1;
    sweep([&](int64_t i, int64_t count, T* p) HWY_ATTR {
      add_d_values(i, count, p);
      if (odd)
        for (int64_t k = 0; k < count; ++k) RowAdd(delta_[i + k], p + k * s_.row_length, h_, s_.width);
    });
    // h_j = dL/dg_j of the last column step, less what the last row step passes on.
    for (int64_t j = 0; j < m_; ++j) h_[j] = AnyDot(a_.e, a_.v + j * a_.v_row, d_values_ + j * padded<T>(a_.e)) - h_[j];
    int64_t rank = 0;
    if (odd) {
      push_first();
      rank = 1;
    }
    for (int64_t k = first_step_; k >= 0; --k) {
      const bool ends_here = k == 0, first_even = !odd && k == first_step_;
      // The column step that follows row step k.
      ratio(a_.state.column + k * m_, last_column_, m_, column_);
      for (int64_t j = 0; j < s_.width; ++j) column_[j] = j < m_ && g_[j] > kLowest<T> ? column_[j] * (h_[j] / target_) : T(0);
      ratio(a_.state.row + k * n_, last_row_, n_, rho_);
      ratio(previous_column(k), last_column_, m_, gamma_);
      for (int64_t j = m_; j < s_.width; ++j) gamma_[j] = 0;
      set_left(rank, rho_);
      set_right(rank, column_);
      set_right(rank + 1, gamma_);
      std::fill_n(h_, s_.width, T(0));
      sweep([&](int64_t i, int64_t count, T* p) HWY_ATTR {
        for (int64_t r = 0; r < count; ++r) {
          const T* row = p + r * s_.row_length;
          const T df = (first_even ? delta_[i + r] : T(0)) - rho_[i + r] * RowDot(row, column_, s_.width);
          left_[(i + r) * rank_ + rank + 1] = -rho_[i + r] * df;
          if (!ends_here) RowAdd(rho_[i + r] * df, row, h_, s_.width);
        }
        if (ends_here) d_scores(i, count, p);
      });
      for (int64_t j = 0; j < m_; ++j) h_[j] *= -gamma_[j];
      rank += 2;
    }
    store_scores();
  }

  const AttentionMatrix<T>& a_;
  const T *out_, *d_out_;
  const AttentionGradients<T>& to_;
  Scores<T> s_;
  ScratchScope& scratch_;
  const int64_t n_, m_;
  int64_t taken_ = 0, rank_ = 1, depth_ = 0;
  int64_t first_step_ = -1;  ///< of the row steps to be undone one by one, down to 0; -1: none
  T target_ = 1, output_scale_ = 1;
  bool computed_ = false, frozen_even_ = false;
  const T *last_row_ = nullptr, *last_column_ = nullptr;
  T *f_, *delta_, *df_, *rho_, *g_, *h_, *column_, *gamma_;
  T *d_values_ = nullptr, *d_out_panels_ = nullptr, *right_ = nullptr, *left_ = nullptr, *left_stripe_ = nullptr, *d_plan_ = nullptr;
  T *keys_ = nullptr, *queries_ = nullptr, *d_query_ = nullptr, *d_keys_ = nullptr;
};

template <class T>
bool BackwardOf(const AttentionMatrix<T>& a, const T* out, const T* d_out, const AttentionGradients<T>& gradients) {
  ScratchScope scratch;
  return BackwardPass<T>(a, out, d_out, gradients, scratch).run();
}
bool BackwardF32(const AttentionMatrix<float>& a, const float* out, const float* d_out, const AttentionGradients<float>& gradients) {
  return BackwardOf(a, out, d_out, gradients);
}
bool BackwardF64(const AttentionMatrix<double>& a, const double* out, const double* d_out, const AttentionGradients<double>& gradients) {
  return BackwardOf(a, out, d_out, gradients);
}

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinkgrad::cpu {
HWY_EXPORT(BackwardF32);
HWY_EXPORT(BackwardF64);

template <>
bool attention_backward(const AttentionMatrix<float>& a, const float* out, const float* d_out, const AttentionGradients<float>& gradients) {
  return HWY_DYNAMIC_DISPATCH(BackwardF32)(a, out, d_out, gradients);
}
template <>
bool attention_backward(const AttentionMatrix<double>& a, const double* out, const double* d_out, const AttentionGradients<double>& gradients) {
  return HWY_DYNAMIC_DISPATCH(BackwardF64)(a, out, d_out, gradients);
}
}  // namespace sinkgrad::cpu
#endif
