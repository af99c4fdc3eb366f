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

/// A stripe and its gradient share the second-level cache with the operands; the taller it is, the less often dK and dV are read and written.
constexpr int64_t kStripeBytes = 256 << 10;

/// A gradient summed over the rows of the matrix: stripes add to the sum of their chunk, sums of chunks are added in order. A matrix that
/// is one stripe goes straight to its place.
template <class T, class U>
class RowSum {
 public:
  /// (rows, columns) of `to`, rows to_row apart, stored or added.
  void open(T* to, int64_t rows, int64_t columns, int64_t to_row, bool add, int64_t chunks, bool in_one_stripe, ScratchScope& scratch) {
    to_ = {nullptr, to, to_row, columns, add};
    rows_ = rows;
    row_ = padded<T>(columns);
    direct_ = in_one_stripe;
    // One thread needs a second sum only for as long as a chunk lasts.
    together_ = chunks == 1 || threads_of_loop() == 1;
    parts_ = direct_ ? 0 : together_ ? std::min<int64_t>(chunks, 2) : chunks;
    part_ = whole_tiles<U>(rows_) * row_;
    sums_ = scratch.take<T>(parts_ * part_);
  }

  /// Adds the share of a stripe, a product of (rows, count) and (count, columns).
  HWY_INLINE void add(const Stripe<T>& s, const Term<U>& product, Ahead& ahead) const {
    if (direct_)
      Product<T>(rows_, to_.columns, to_, ahead, product);
    else if (s.opens_chunk)
      Product<T>(rows_, to_.columns, StoreTile<T>{part(s.chunk), row_}, ahead, product);
    else
      Product<T>(rows_, to_.columns, AddTile<T>{part(s.chunk), row_}, ahead, product);
  }
  /// After the last stripe of a chunk.
  void close_chunk(int64_t chunk) const {
    if (together_ && chunk > 0 && !direct_) join(1);
  }
  /// After the last chunk.
  void close() const {
    for (int64_t p = 1; p < parts_ && !together_; ++p) join(p);
  }
  /// To its place, where it is not there already, rows times `factors` if not null.
  void store(const T* factors) const {
    for (int64_t i = 0; i < rows_ && !direct_; ++i) {
      const T factor = factors ? factors[i] : T(1);
      for (int64_t j = 0; j < to_.columns; ++j) to_.c[i * to_.row + j] = factor * sums_[i * row_ + j] + (to_.add ? to_.c[i * to_.row + j] : T(0));
    }
  }
  const T* sum() const { return direct_ ? to_.c : sums_; }
  int64_t sum_row() const { return direct_ ? to_.row : row_; }

 private:
  T* part(int64_t chunk) const { return sums_ + (together_ ? std::min<int64_t>(chunk, 1) : chunk) * part_; }
  void join(int64_t p) const {
    const T* from = sums_ + p * part_;
    for (int64_t i = 0; i < rows_ * row_; i += kLanes<T>) Store(hn::Add(Load(sums_ + i), Load(from + i)), sums_ + i);
  }
  OutputTile<T> to_{};
  int64_t rows_ = 0, row_ = 0, parts_ = 0, part_ = 0;  ///< part_: numbers in a part
  bool direct_ = false, together_ = true;
  T* sums_ = nullptr;
};

template <class T, class U>
class BackwardPass {
 public:
  BackwardPass(const AttentionMatrix<T>& a, const T* out, const T* d_out, const AttentionGradients<T>& gradients, ScratchScope& scratch)
      : a_(a), out_(out), d_out_(d_out), to_(gradients), scratch_(scratch), n_(a.n), m_(a.m), taken_(static_cast<int64_t>(a.state.stats[0])) {
    last_row_ = a_.state.row + (taken_ - 1) / 2 * n_;
    last_column_ = taken_ > 1 ? a_.state.column + (taken_ / 2 - 1) * m_ : nullptr;
  }

  bool run() {
    if (!find_anchor()) return false;
    const bool scores_wanted = to_.dq || to_.dk;
    plan_ranks(scores_wanted);
    Scores<T, U> scores(a_, 1 + std::max<int64_t>(0, first_step_ + 1), kStripeBytes, scratch_);
    s_ = &scores;
    if (s_->wants_next()) want_next();
    prepare();
    if (scores_wanted) begin_scores();
    // With one half-step, or frozen columns, nothing has to be known of all rows before the scores' gradient: one sweep does it all.
    if (first_step_ < 0) {
      if (scores_wanted) push_first();
      sweep([&](const Stripe<T>& s) HWY_ATTR {
        add_d_values(s);
        if (scores_wanted) d_scores(s);
      });
      d_values_.close();
    } else {
      reverse();
    }
    if (to_.dk) {
      d_keys_.close();
      d_keys_.store(nullptr);
    }
    if (to_.dv) d_values_.store(column_scale_);
    return true;
  }

 private:
  T* take(int64_t count, T value = 0) {
    T* p = scratch_.template take<T>(count);
    std::fill_n(p, count, value);
    return p;
  }

  /// The largest f_t - f plus g_t - g over row steps t, with the g before or after it. In terms of a plan P with potentials f, g, that of t
  /// is P o e^(f_t - f) e^(g_t - g): entries of P below the smallest number are lost, so these factors must not raise them to anything that
  /// counts. They may vanish: so does what they belong to.
  T rise(const T* f, const T* g) const {
    auto most = [](const T* potential, const T* anchor, int64_t count) HWY_ATTR {  // null: zeros
      Vec<T> top = hn::Zero(Tag<T>());
      int64_t i = 0;
      for (; i + kLanes<T> <= count; i += kLanes<T>)
        top = hn::Max(top, hn::Sub(potential ? Load(potential + i) : hn::Zero(Tag<T>()), Load(anchor + i)));
      T largest = LargestOf<T>(top);
      for (; i < count; ++i) largest = std::max(largest, (potential ? potential[i] : T(0)) - anchor[i]);
      return largest;
    };
    T worst = 0, before = most(nullptr, g, m_);
    for (int64_t k = 0; k < (taken_ + 1) / 2; ++k) {
      const T after = k < taken_ / 2 ? most(a_.state.column + k * m_, g, m_) : T(0);
      worst = std::max(worst, most(a_.state.row + k * n_, f, n_) + std::max(before, after));
      before = after;
    }
    return worst;
  }

  /// Chooses the potentials f, g of the plan that all sweeps work with: the last, or halfway to the largest of all half-steps where the last
  /// lie too far below. The true plan then is row_scale_ P column_scale_. False where that is not enough.
  bool find_anchor() {
    constexpr T kLimit = sizeof(T) == 4 ? 64 : 640;
    row_anchor_ = last_row_;
    column_anchor_ = last_column_;
    if (!last_column_ || rise(last_row_, last_column_) <= kLimit) return true;
    auto halfway = [&](const T* steps, int64_t count, const T* last, int64_t length, T start, T*& scale) {
      T *anchor = take(length), most = 0;
      scale = take(whole_vectors<T>(length), T(0));
      for (int64_t i = 0; i < length; ++i) {
        T top = std::max(last[i], start);
        for (int64_t k = 0; k < count; ++k) top = std::max(top, steps[k * length + i]);
        anchor[i] = last[i] + (top - last[i]) / 2;
        scale[i] = std::exp(last[i] - anchor[i]);
        most = std::max(most, anchor[i] - last[i]);
      }
      return std::pair<const T*, T>(anchor, most);
    };
    const auto [f, f_most] = halfway(a_.state.row, (taken_ + 1) / 2, last_row_, n_, kLowest<T>, row_scale_);
    const auto [g, g_most] = halfway(a_.state.column, taken_ / 2, last_column_, m_, T(0), column_scale_);
    row_anchor_ = f;
    column_anchor_ = g;
    return f_most + g_most <= kLimit && rise(f, g) <= kLimit;
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

  /// What every sweep needs: potentials in base 2 with -inf where something is excluded, delta, dO in panels.
  void prepare() {
    const int64_t rows = s_->rows, width = s_->width;
    output_scale_ = a_.task.rows_sum_to_inverse_count && s_->valid_rows ? T(1) / T(s_->valid_rows) : T(1);
    target_ = s_->valid_columns ? T(s_->valid_rows) / T(s_->valid_columns) : T(1);
    for (T** p : {&delta_, &rho_, &df_, &top_}) *p = take(rows);
    for (T** p : {&column_, &gamma_, &h_}) *p = take(width);
    f_ = take(rows, kLowest<T>);
    g_ = take(width, kLowest<T>);
    partial_ = take(s_->chunks * width);
    std::copy_n(a_.row_max, n_, top_);
    for (int64_t i = 0; i < n_; ++i) f_[i] = s_->row_open[i] != T(0) ? row_anchor_[i] * static_cast<T>(kLog2E) : kLowest<T>;
    for (int64_t j = 0; j < m_; ++j)
      g_[j] = s_->column_open[j] != T(0) ? (column_anchor_ ? column_anchor_[j] * static_cast<T>(kLog2E) : T(0)) : kLowest<T>;
    RowProducts(n_, a_.e, d_out_, a_.v_row, out_, a_.v_row, delta_);
    plan_delta_ = delta_;
    if (row_scale_) {
      plan_delta_ = take(rows);
      for (int64_t i = 0; i < n_; ++i) plan_delta_[i] = row_scale_[i] * delta_[i];
    }
    d_out_panels_ = take_panels(n_, a_.e);
    PackRows(n_, a_.e, d_out_, a_.v_row, output_scale_, row_scale_, d_out_panels_);
    // One tensor may be query, key and value: then dV is added after dQ and dK, and meanwhile has a sum of its own.
    d_values_.open(to_.dv, m_, a_.e, a_.v_row, to_.add_v, s_->chunks, s_->one_stripe() && to_.dv && !to_.add_v && !column_scale_, scratch_);
  }

  void want_next() {
    s_->ahead.want(d_out_ + a_.next_o, n_, a_.v_row, a_.e);
    s_->ahead.want(out_ + a_.next_o, n_, a_.v_row, a_.e);
    if (to_.dv) s_->ahead.want(to_.dv + a_.next_v, m_, a_.v_row, a_.e);
    if (to_.dq) s_->ahead.want(to_.dq + a_.next_q, n_, a_.q_row, a_.d);
    if (to_.dk) s_->ahead.want(to_.dk + a_.next_k, m_, a_.q_row, a_.d);
  }

  U* take_panels(int64_t depth, int64_t width) { return scratch_.template take<U>(elements<U>(depth) * padded<T>(width)); }
  /// The rows of a right operand that meet a stripe.
  Term<U> term(const Left<U>& left, const U* panels, int64_t panel_depth, int64_t first, int64_t count) const {
    return {left.at, left.row, left.step, panels + elements<U>(first) * kPanel<T>, elements<U>(panel_depth) * kPanel<T>, elements<U>(count)};
  }

  /// Calls body(stripe) for the plan.
  template <class Body>
  HWY_INLINE void sweep(const Body& body) {
    s_->sweep([&](const Stripe<T>& s) HWY_ATTR {
      if (!s.kept) {
        s_->compute(s);
        T ignored[kTileRows];
        s_->each_group(s, [&](int64_t i, T* x) HWY_ATTR { GroupExp<T>(x, s_->row_length, top_ + i, f_ + i, g_, nullptr, m_, ignored); });
      }
      body(s);
    });
  }

  HWY_INLINE void add_d_values(const Stripe<T>& s) {
    ScratchScope scratch;
    const Left<U> left = TransposedLeftOperand<U>(m_, s.count, s.rows, s_->row_length, scratch);
    d_values_.add(s, term(left, d_out_panels_, n_, s.begin, s.count), s_->ahead);
    if (s.closes_chunk) d_values_.close_chunk(s.chunk);
  }

  void begin_scores() {
    const T *d_out = d_out_, *v = a_.v;
    int64_t row = a_.v_row;
    if (row_scale_) {
      auto scaled = [&](const T* x, int64_t rows, const T* factors) HWY_ATTR {
        T* y = scratch_.template take<T>(rows * a_.e);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = 0; c < a_.e; ++c) y[i * a_.e + c] = factors[i] * x[i * a_.v_row + c];
        return y;
      };
      d_out = scaled(d_out_, n_, row_scale_);
      v = scaled(a_.v, m_, column_scale_);
      row = a_.e;
    }
    d_out_rows_ = LeftOperand<U>(n_, a_.e, d_out, row, scratch_);
    values_ = take_panels(a_.e, m_);
    PackTransposed(a_.e, m_, v, row, output_scale_, values_);
    right_ = take(rank_ * padded<T>(m_));
    left_ = take(s_->rows * rank_);
    if (to_.dq) {
      keys_ = take_panels(m_, a_.d);
      PackRows<U, T>(m_, a_.d, a_.k, a_.q_row, a_.scale, nullptr, keys_);
    }
    if (to_.dk) {
      queries_ = take_panels(n_, a_.d);
      PackRows<U, T>(n_, a_.d, a_.q, a_.q_row, a_.scale, nullptr, queries_);
      d_keys_.open(to_.dk, m_, a_.d, a_.q_row, to_.add_k, s_->chunks, s_->one_stripe(), scratch_);
    }
  }

  /// Column `at` of B.
  void set_right(int64_t at, const T* values) {
    Vectors<T>(
        s_->width, [&](int64_t j, auto v) HWY_ATTR { Store(v, right_ + (j / kPanel<T> * rank_ + at) * kPanel<T> + j % kPanel<T>); }, values);
  }
  /// Column `at` of -A.
  void set_left(int64_t at, const T* values) {
    for (int64_t i = 0; i < n_; ++i) left_[i * rank_ + at] = -values[i];
  }
  /// The last row half-step (softmax's form), or that of a frozen gradient that ends on columns.
  void push_first() {
    set_left(0, plan_delta_);
    if (frozen_even_)
      ratio(previous_column((taken_ + 1) / 2 - 1), column_anchor_, m_, column_);
    else if (column_scale_)
      std::copy_n(column_scale_, s_->width, column_);
    else
      std::fill_n(column_, s_->width, T(1));
    set_right(0, column_);
  }

  /// dS = P o (dP - A B^T) for a stripe, and its share of dQ and dK.
  HWY_INLINE void d_scores(const Stripe<T>& s) {
    ScratchScope scratch;
    T* ds = scratch.take<T>(s.count * s_->row_length);
    const Left<U> d_out{d_out_rows_.at + s.begin * d_out_rows_.row, d_out_rows_.row, d_out_rows_.step};
    const Term<T> low_rank{left_ + s.begin * rank_, rank_, 1, right_, rank_ * kPanel<T>, rank_};
    Product<T>(s.count, m_, MultiplyTile<T>{s.rows, ds, s_->row_length}, s_->ahead, term(d_out, values_, a_.e, 0, a_.e), low_rank);
    if (to_.dq) {
      const Left<U> left = LeftOperand<U>(s.count, m_, ds, s_->row_length, scratch);
      Product<T>(s.count, a_.d, OutputTile<T>{nullptr, to_.dq + s.begin * a_.q_row, a_.q_row, a_.d, to_.add_q}, s_->ahead,
                 term(left, keys_, m_, 0, m_));
    }
    if (to_.dk) {
      const Left<U> left = TransposedLeftOperand<U>(m_, s.count, ds, s_->row_length, scratch);
      d_keys_.add(s, term(left, queries_, n_, s.begin, s.count), s_->ahead);
      if (s.closes_chunk) d_keys_.close_chunk(s.chunk);
    }
  }

  /// out = exp(a - b), then 0 up to whole vectors; a null a stands for zeros.
  void ratio(const T* a, const T* b, int64_t count, T* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = ((a ? a[i] : T(0)) - b[i]) * static_cast<T>(kLog2E);
    Vectors<T>(
        count, [&](int64_t i, auto x) HWY_ATTR { Store(Exp2<T>(x), out + i); }, out);
    std::fill(out + count, out + whole_vectors<T>(count), T(0));
  }
  /// Column potentials before row step k; null before the first.
  const T* previous_column(int64_t k) const { return k > 0 ? a_.state.column + (k - 1) * m_ : nullptr; }

  /// The column sums that the chunks of a sweep found.
  void merge_columns() {
    std::copy_n(partial_, s_->width, h_);
    for (int64_t c = 1; c < s_->chunks; ++c)
      Vectors<T>(
          s_->width, [&](int64_t j, auto sum, auto part) HWY_ATTR { Store(hn::Add(sum, part), h_ + j); }, h_, partial_ + c * s_->width);
  }

  /// The sweeps of an unrolled gradient over two or more half-steps.
  void reverse() {
    const bool odd = taken_ % 2 == 1;
    sweep([&](const Stripe<T>& s) HWY_ATTR {
      add_d_values(s);
      if (odd)
        s_->each_group(s, [&](int64_t i, T* p) HWY_ATTR { GroupAdd(plan_delta_ + i, p, s_->row_length, partial_ + s.chunk * s_->width, s_->width); });
    });
    d_values_.close();
    merge_columns();
    // h_j = dL/dg_j of the last column step, less what the last row step passes on.
    RowProducts(m_, a_.e, a_.v, a_.v_row, d_values_.sum(), d_values_.sum_row(), column_);
    for (int64_t j = 0; j < m_; ++j) h_[j] = (column_[j] - h_[j]) * (column_scale_ ? column_scale_[j] : T(1));
    int64_t rank = 0;
    if (odd) {
      push_first();
      rank = 1;
    }
    for (int64_t k = first_step_; k >= 0; --k, rank += 2) {
      const bool ends_here = k == 0, first_even = !odd && k == first_step_;
      // The column step that follows row step k.
      ratio(a_.state.column + k * m_, column_anchor_, m_, column_);
      for (int64_t j = 0; j < s_->width; ++j) column_[j] = s_->column_open[j] != T(0) ? column_[j] * (h_[j] / target_) : T(0);
      ratio(a_.state.row + k * n_, row_anchor_, n_, rho_);
      ratio(previous_column(k), column_anchor_, m_, gamma_);
      set_left(rank, rho_);
      set_right(rank, column_);
      set_right(rank + 1, gamma_);
      std::fill_n(partial_, s_->chunks * s_->width, T(0));
      sweep([&](const Stripe<T>& s) HWY_ATTR {
        s_->each_group(s, [&](int64_t i, T* p) HWY_ATTR {
          GroupDot(p, s_->row_length, column_, s_->width, df_ + i);
          for (int64_t r = i; r < i + kTileRows; ++r) {
            df_[r] = rho_[r] * ((first_even ? delta_[r] : T(0)) - rho_[r] * df_[r]);
            left_[r * rank_ + rank + 1] = -df_[r];
          }
          if (!ends_here) GroupAdd(df_ + i, p, s_->row_length, partial_ + s.chunk * s_->width, s_->width);
        });
        if (ends_here) d_scores(s);
      });
      merge_columns();
      for (int64_t j = 0; j < m_; ++j) h_[j] *= -gamma_[j];
    }
  }

  const AttentionMatrix<T>& a_;
  const T *out_, *d_out_;
  const AttentionGradients<T>& to_;
  ScratchScope& scratch_;
  const int64_t n_, m_, taken_;
  Scores<T, U>* s_ = nullptr;
  int64_t rank_ = 1;
  int64_t first_step_ = -1;  ///< of the row steps to be undone one by one, down to 0; -1: none
  T target_ = 1, output_scale_ = 1;
  bool frozen_even_ = false;
  const T *last_row_, *last_column_;  ///< potentials of the last half-steps; null: no column step
  const T *row_anchor_ = nullptr, *column_anchor_ = nullptr;
  T *row_scale_ = nullptr, *column_scale_ = nullptr;  ///< null: ones
  T *f_, *delta_, *plan_delta_, *df_, *rho_, *top_, *g_, *h_, *column_, *gamma_, *partial_;
  U *d_out_panels_ = nullptr, *values_ = nullptr, *keys_ = nullptr, *queries_ = nullptr;  ///< right operands of products
  T *right_ = nullptr, *left_ = nullptr;                                                  ///< B in panels, -A
  Left<U> d_out_rows_{};                                                                  ///< of dO V^T, as the plan's scales want it
  RowSum<T, U> d_values_, d_keys_;
};

template <class U, class T>
bool BackwardOf(const AttentionMatrix<T>& a, const T* out, const T* d_out, const AttentionGradients<T>& gradients) {
  ScratchScope scratch;
  return BackwardPass<T, U>(a, out, d_out, gradients, scratch).run();
}
bool BackwardF32(const AttentionMatrix<float>& a, const float* out, const float* d_out, const AttentionGradients<float>& gradients) {
  return with_operand_type(a.precision, [&]<class U>() { return BackwardOf<U>(a, out, d_out, gradients); });
}
bool BackwardF64(const AttentionMatrix<double>& a, const double* out, const double* d_out, const AttentionGradients<double>& gradients) {
  return BackwardOf<double>(a, out, d_out, gradients);
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
