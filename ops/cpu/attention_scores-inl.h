// The scores of one matrix, a stripe of rows at a time: S = scale Q K^T in units of log 2, masked. For one instruction set.
//
// Rows are cut into chunks that threads may share and that depend on n alone, so that results depend neither on the number of threads
// nor on the batch. A chunk is walked in stripes small enough for the cache. Sweeps after the first find the stripes that fit into memory
// as they were left; the others are computed again, to the same bits.
#if defined(SINKGRAD_ATTENTION_SCORES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SINKGRAD_ATTENTION_SCORES_INL
#undef SINKGRAD_ATTENTION_SCORES_INL
#else
#define SINKGRAD_ATTENTION_SCORES_INL
#endif

#include "core/parallel.h"
#include "ops/cpu/attention_matrix.h"
#include "ops/cpu/attention_rows-inl.h"
#include "ops/cpu/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {

constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;
/// Memory for rows that are kept from sweep to sweep, all threads together: more is computed again.
constexpr int64_t kKeptBytes = 128 << 20;
constexpr int64_t kMostChunks = 8, kLeastChunkRows = 128, kMostStripeRows = 64;

template <class T>
struct Stripe {
  int64_t chunk, begin, count;  ///< rows begin .. begin+count-1
  T* rows;                      ///< padded to whole groups
  bool kept;                    ///< holds what the sweep before left
  bool opens_chunk, closes_chunk;
};

/// U: of the operands of products.
template <class T, class U>
class Scores {
 public:
  /// `sweeps`: how often the rows will be walked. `stripe_bytes`: of scores, at most.
  Scores(const AttentionMatrix<T>& a, int64_t sweeps, int64_t stripe_bytes, ScratchScope& scratch)
      : a_(a), width(whole_vectors<T>(a.m)), row_length(odd_lines<T>(width)), row_bytes_(row_length * static_cast<int64_t>(sizeof(T))) {
    chunk_rows_ = round_up(std::max(kLeastChunkRows, (a.n + kMostChunks - 1) / kMostChunks), kMostStripeRows);
    chunks = std::max<int64_t>(1, (a.n + chunk_rows_ - 1) / chunk_rows_);
    rows = chunks * chunk_rows_;
    for (stripe_ = kMostStripeRows; stripe_ > kLeastStripeRows && stripe_ * row_bytes_ > stripe_bytes;) stripe_ /= 2;
    const int64_t used_rows = chunks == 1 ? round_up(a.n, stripe_) : chunk_rows_;
    if (sweeps > 1) kept_rows_ = std::min(used_rows, kKeptBytes / threads() / chunks / row_bytes_ / stripe_ * stripe_);
    all_kept_ = kept_rows_ == used_rows;
    matrix_ = scratch.take<T>(chunks * kept_rows_ * row_length);
    queries_ = LeftOperand<U>(a.n, a.d, a.q, a.q_row, scratch);
    keys_ = scratch.take<U>(elements<U>(a.d) * padded<T>(a.m));
    PackTransposed(a.d, a.m, a.k, a.q_row, static_cast<T>(a.scale * static_cast<T>(kLog2E)), keys_);
    find_open(scratch);
    if (wants_next()) {
      ahead.want(a.k + a.next_k, a.m, a.q_row, a.d);
      ahead.want(a.q + a.next_q, a.n, a.q_row, a.d);
      ahead.want(a.v + a.next_v, a.m, a.v_row, a.e);
    }
    if (a.keys || a.pairs) {
      T* bias = scratch.take<T>(width);
      for (int64_t j = 0; j < width; ++j) bias[j] = column_open[j] != T(0) ? T(0) : kLowest<T>;
      key_bias = bias;
    }
  }

  /// body(stripe) for all stripes; chunks in parallel, stripes of a chunk in order.
  template <class Body>
  void sweep(const Body& body) {
    parallel_chunks(chunks, [&](int64_t c) HWY_ATTR {
      ScratchScope scratch;
      const TileScope<U> tiles;
      T* spare = all_kept_ ? nullptr : scratch.take<T>(stripe_ * row_length);
      const int64_t first = c * chunk_rows_, end = std::min(a_.n, first + chunk_rows_);
      for (int64_t i = first; i < end; i += stripe_) {
        const int64_t at = i - first;
        const bool keep = at + stripe_ <= kept_rows_;
        body(Stripe<T>{c, i, std::min(stripe_, end - i), keep ? matrix_ + (c * kept_rows_ + at) * row_length : spare, keep && filled_, at == 0,
                       i + stripe_ >= end});
      }
    });
    filled_ = true;
  }
  bool wants_next() const {
    constexpr int64_t kOperandBytes = 64 << 10;
    return a_.next_q != 0 && chunks <= 2 && std::max(a_.n, a_.m) * std::max(a_.d, a_.e) * static_cast<int64_t>(sizeof(T)) <= kOperandBytes;
  }
  bool one_stripe() const { return a_.n <= stripe_; }
  /// The next sweep finds nothing kept.
  void forget() { filled_ = false; }

  /// The scores of a stripe; hidden pairs are -inf, masks on keys are left to key_bias. Rows that fill the last group are 0.
  void compute(const Stripe<T>& s) {
    const int64_t depth = elements<U>(a_.d);
    const Term<U> product{queries_.at + s.begin * queries_.row, queries_.row, queries_.step, keys_, depth * kPanel<T>, depth};
    Product<T>(s.count, a_.m, StoreTile<T>{s.rows, row_length}, ahead, product);
    std::fill_n(s.rows + s.count * row_length, (groups_end(s) - s.count) * row_length, T(0));
    if (!a_.pairs) return;
    for (int64_t r = 0; r < s.count; ++r) {
      T* x = s.rows + r * row_length;
      const int32_t* hidden = a_.pairs + (s.begin + r) * a_.m;
      for (int64_t j = 0; j < a_.m; ++j) x[j] = hidden[j] ? kLowest<T> : x[j];
    }
  }

  static int64_t groups_end(const Stripe<T>& s) { return round_up(s.count, kTileRows); }
  /// body(index of the group's first row in arrays over rows, its memory)
  template <class Body>
  HWY_INLINE void each_group(const Stripe<T>& s, const Body& body) const {
    for (int64_t r = 0; r < s.count; r += kTileRows) body(s.begin + r, s.rows + r * row_length);
  }

  const AttentionMatrix<T>& a_;
  const int64_t width, row_length;  ///< columns in whole vectors; distance of rows in memory
  int64_t chunks, rows;             ///< rows: the length of arrays over rows, whole chunks
  Ahead ahead;                      ///< of the next matrix, where a matrix is so small that its operands arriving would be felt
  const T* key_bias = nullptr;      ///< 0, or -inf for hidden keys and padding; null without masks
  T *row_open, *column_open;        ///< (rows), (width): 1 where something is visible, else 0
  int64_t valid_rows = 0, valid_columns = 0;

 private:
  /// Where a stripe's rows are summed, it begins at an AMX tile.
  static constexpr int64_t kLeastStripeRows = kTiled<U> ? kTogether<U> * kTileSide : 16;
  static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
  /// As in SinkhornMatrix: a row is valid with a visible key, a column with a visible query.
  void find_open(ScratchScope& scratch) {
    row_open = scratch.take<T>(rows);
    column_open = scratch.take<T>(width);
    std::fill_n(row_open, rows, T(0));
    std::fill_n(column_open, width, T(0));
    const int64_t n = a_.n, m = a_.m;
    if (a_.pairs) {
      int32_t *key_shown = scratch.take<int32_t>(m), *seen = scratch.take<int32_t>(m);
      for (int64_t j = 0; j < m; ++j) key_shown[j] = !(a_.keys && a_.keys[j]);
      std::fill_n(seen, m, 0);
      for (int64_t i = 0; i < n; ++i) {
        if (a_.queries && a_.queries[i]) continue;
        const int32_t* hidden = a_.pairs + i * m;
        int32_t any = 0;
        for (int64_t j = 0; j < m; ++j) {
          const int32_t shown = (hidden[j] == 0) & key_shown[j];
          any |= shown;
          seen[j] |= shown;
        }
        row_open[i] = static_cast<T>(any);
      }
      for (int64_t j = 0; j < m; ++j) column_open[j] = static_cast<T>(seen[j]);
    } else {
      for (int64_t i = 0; i < n; ++i) row_open[i] = a_.queries && a_.queries[i] ? T(0) : T(1);
      for (int64_t j = 0; j < m; ++j) column_open[j] = a_.keys && a_.keys[j] ? T(0) : T(1);
    }
    auto count = [](const T* open, int64_t length) { return static_cast<int64_t>(std::count(open, open + length, T(1))); };
    valid_rows = count(row_open, n);
    valid_columns = count(column_open, m);
    if (valid_rows > 0 && valid_columns > 0) return;
    std::fill_n(row_open, rows, T(0));
    std::fill_n(column_open, width, T(0));
    valid_rows = valid_columns = 0;
  }

  const int64_t row_bytes_;
  int64_t chunk_rows_, stripe_, kept_rows_ = 0;
  bool all_kept_, filled_ = false;
  T* matrix_;
  Left<U> queries_;
  U* keys_;
};

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
