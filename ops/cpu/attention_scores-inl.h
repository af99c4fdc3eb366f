// The scores of one matrix, a stripe of rows at a time: S = scale Q K^T in units of log 2, masked, then exponentials. For one
// instruction set.
#if defined(SINKGRAD_ATTENTION_SCORES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SINKGRAD_ATTENTION_SCORES_INL
#undef SINKGRAD_ATTENTION_SCORES_INL
#else
#define SINKGRAD_ATTENTION_SCORES_INL
#endif

#include "core/parallel.h"
#include "ops/cpu/attention_matrix.h"
#include "ops/cpu/attention_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {

constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;
/// Beyond this a matrix of exponentials is computed again in each sweep rather than read from far memory.
constexpr int64_t kResidentBytes = 24 << 20;

template <class T>
class Scores {
 public:
  Scores(const AttentionMatrix<T>& a, bool keep, ScratchScope& scratch)
      : a_(a), width(padded<T>(a.m)), row_length(width + ((width * static_cast<int64_t>(sizeof(T))) % 2048 == 0 ? kPanel<T> : 0)) {
    // Enough rows for the microkernel to reuse a panel, few enough for a stripe to stay in the first-level cache or close to it.
    stripe = std::clamp<int64_t>(32768 / (row_length * static_cast<int64_t>(sizeof(T))) / kTileRows * kTileRows, 12, 48);
    resident = keep && a.n * row_length * static_cast<int64_t>(sizeof(T)) <= kResidentBytes;
    matrix_ = scratch.take<T>((resident ? a.n : stripe) * row_length);
    keys_ = scratch.take<T>(a.d * width);
    queries_ = scratch.take<T>(stripe * a.d);
    PackTransposed(a.d, a.m, a.k, a.q_row, keys_, a.d * kPanel<T>);
    if (a.keys) {
      T* bias = scratch.take<T>(width);
      for (int64_t j = 0; j < width; ++j) bias[j] = j < a.m && !a.keys[j] ? T(0) : kLowest<T>;
      key_bias = bias;
    }
    count_valid();
  }

  T* rows(int64_t i) const { return resident ? matrix_ + i * row_length : matrix_; }
  bool excluded(int64_t i) const { return a_.queries && a_.queries[i] != 0; }

  /// Rows i .. i+count-1 of the scores, without masks on keys (those are key_bias).
  T* compute(int64_t i, int64_t count) const {
    const T factor = static_cast<T>(a_.scale * static_cast<T>(kLog2E));
    for (int64_t r = 0; r < count; ++r) ScaledCopy(a_.d, a_.q + (i + r) * a_.q_row, factor, queries_ + r * a_.d, false);
    T* s = rows(i);
    Product(count, a_.d, queries_, a_.d, 1, keys_, a_.d * kPanel<T>, a_.m, s, row_length, false);
    if (a_.m % kPanel<T> != 0 && a_.m % kPanel<T> <= kLanes<T>)  // the last vector of the panel was not written
      for (int64_t r = 0; r < count; ++r) Store(Set(s[r * row_length]), s + r * row_length + width - kLanes<T>);
    if (a_.pairs)
      for (int64_t r = 0; r < count; ++r)
        for (int64_t j = 0; j < a_.m; ++j)
          if (a_.pairs[(i + r) * a_.m + j]) s[r * row_length + j] = kLowest<T>;
    return s;
  }
  /// Replaces a row of scores by 2^(score - its maximum + shift + bias); an excluded row by 0. Returns the sum.
  T exponentials(int64_t i, T* s, T shift, const T* bias, T* top_out = nullptr) const {
    const T top = excluded(i) ? kLowest<T> : RowMax(s, key_bias, width);
    if (top_out) *top_out = top;
    if (top == kLowest<T>) {
      std::fill_n(s, width, T(0));
      return T(0);
    }
    return RowExp(s, top, shift, bias, a_.m, width);
  }

  const AttentionMatrix<T>& a_;
  const int64_t width, row_length;  ///< padded columns; distance of rows
  int64_t stripe;
  bool resident;                ///< all rows are kept, else one stripe
  const T* key_bias = nullptr;  ///< 0 or -inf per key and padding; null without a mask
  int64_t valid_rows = 0, valid_columns = 0;

 private:
  void count_valid() {
    // As in SinkhornMatrix: a row is valid with a visible key, a column with a visible query.
    const int64_t n = a_.n, m = a_.m;
    int64_t open_rows = 0, open_columns = 0;
    for (int64_t i = 0; i < n; ++i) open_rows += !excluded(i);
    for (int64_t j = 0; j < m; ++j) open_columns += !(a_.keys && a_.keys[j]);
    if (!a_.pairs) {
      valid_rows = open_columns ? open_rows : 0;
      valid_columns = open_rows ? open_columns : 0;
      return;
    }
    for (int64_t i = 0; i < n; ++i) {
      bool any = false;
      for (int64_t j = 0; j < m && !any; ++j) any = !excluded(i) && !a_.pairs[i * m + j] && !(a_.keys && a_.keys[j]);
      valid_rows += any;
    }
    for (int64_t j = 0; j < m; ++j) {
      bool any = false;
      for (int64_t i = 0; i < n && !any; ++i) any = !excluded(i) && !a_.pairs[i * m + j] && !(a_.keys && a_.keys[j]);
      valid_columns += any;
    }
  }
  T *matrix_, *keys_, *queries_;
};

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
