// The backward of streaming Sinkhorn attention in pieces. With P the plan of the last half-step, rows of dO divided by what its rows were
// (rows_sum_to_inverse_count), delta_i = dO_i . O_i, and the half-steps walked backwards in pairs k of a row step f_k and a column step g_k:
//   dV = P^T dO      h_j = V_j . dV_j - sum_i P_ij delta_i  (delta only where a row step is the last, then it also is the first rank)
//   pair k:  W = exp(S + f_k + g_k)    df_i = (delta_i, if the pair is the last) - sum_j W_ij h_j / b
//            h_j <- -exp(g_{k-1} - g_k) sum_i W_ij df_i
//   dS = P o (dO V^T) - sum over pairs (W_ij h_j / b + exp(S + f_k + g_{k-1}) df_i) - P delta = P o (dO V^T - A B^T)
// where A and B have a column per half-step: factors exp(f_k - f_last), exp(g_k - g_last). They ride behind the columns of dO and V.
#pragma once
#include "cuda/attention_streaming.h"

namespace sinkgrad::cuda::streaming {

/// One side of the scores, queries or keys, as a gradient kernel sees it.
template <class F>
struct Side {
  using Real = typename F::Value;
  Packed<F> x, dx;            ///< Q and dO, or K and V; dx with the columns of A or B behind its own
  Span<Real> max, potential;  ///< (matrices, padded), base 2; of keys max is 0
};

/// A matrix whose factors would overflow takes its half-steps one by one, exponents evaluated jointly.
template <class Real>
struct Rounds {
  int64_t count = 0;                  ///< pairs of half-steps, the last ones first
  Span<const int32_t> taken, drifts;  ///< (matrices)
  Span<const Real> row, column;       ///< potentials as they are kept, natural units: (matrices, steps, n) and (matrices, steps, m)
  Span<const Real> df, weight;        ///< (count, matrices, padded): df_i and h_j / b
};

/// out = factor (P o (own.dx streamed.dx^T)) streamed.x for the rows of `own`.
template <class F, class T>
struct ScoreGradient {
  using Real = typename F::Value;
  AttentionShape shape;
  AttentionMasksView masks;
  Side<F> own, streamed;
  bool transposed = false;  ///< own are the keys
  Real factor = 1;
  GradSpan<T> out;  ///< (B, lines, H D)
  Rounds<Real> rounds;
};
template <class F, class T>
void launch_score_gradient(const ScoreGradient<F, T>& a);

/// dV = P^T dO, and weighted_j = sum_i P_ij weight_i.
template <class F>
struct ValueGradient {
  using Real = typename F::Value;
  AttentionShape shape;
  AttentionMasksView masks;
  Side<F> queries, keys;
  Span<const Real> weight;  ///< (matrices, n padded)
  Span<Real> weighted;      ///< (matrices, m padded)
  Span<Real> dv;            ///< (B, M, H E)
};
template <class F>
void launch_value_gradient(const ValueGradient<F>& a);

/// Half-steps taken, as the forward kept them.
template <class T>
Span<int32_t> load_taken(Scratch& scratch, const AttentionShape& s, Span<const T> stats);

/// to_i = a_i . b_i - less_i over the lines of (B, lines, H dims); 0 for excluded ones. `a` is rounded like the operand of a product that
/// it also is, so that what should cancel does.
template <class F, class A, class B>
struct LineProducts {
  using Real = typename F::Value;
  Span<Real> to;  ///< (matrices, padded)
  Span<const A> a;
  Span<const B> b;
  Span<const Real> less = {};
  int64_t lines, dims;
  Span<const int32_t> valid;            ///< (batch, padded)
  Span<const int32_t> taken = {};       ///< (matrices); if present:
  Span<Real> direct = {}, ranked = {};  ///< the same where a column step is the last, and where a row step is; else 0
};
template <class F, class A, class B>
void multiply_lines(const AttentionShape& s, const LineProducts<F, A, B>& a);

/// The columns of A and B: a rank per half-step, one for a frozen gradient, two for an implicit one.
enum class Ranks : uint8_t { unrolled, frozen, implicit };
template <class Real>
struct RankColumns {
  AttentionShape shape;
  Ranks kind;
  ValidLines valid;
  Rounds<Real> rounds;
  Span<const Real> row, column;  ///< delta, or alpha and beta: (matrices, padded)
};
/// Columns that a rank takes. Where operands are rounded A and B are sums of two numbers, since their product cancels against dO V^T:
/// A B^T = A_high B_high + A_high B_low + A_low B_high.
template <class F>
constexpr int kRankParts = std::is_same_v<F, Full<typename F::Value>> ? 1 : 3;
/// Columns behind those of dO and V that so many ranks take.
template <class F>
int64_t rank_columns(int64_t ranks) {
  return (kRankParts<F> * ranks + 1) / 2 * 2;
}
/// Writes -A behind the columns of dO and B behind those of V.
template <class F>
void append_ranks(const Packed<F>& d_out, const Packed<F>& v, int64_t ranks, const RankColumns<typename F::Value>& a);

/// The rounds of an unrolled gradient: what each one's sweep needs, and its results.
template <class Real>
struct RoundState {
  AttentionShape shape;
  ValidLines valid;
  Rounds<Real> rounds;
  Span<Real> df, weight;       ///< those of the rounds, to be written
  Span<const Real> h, direct;  ///< (matrices, padded): where the first round begins
  Span<Real> row, column;      ///< potentials of the present round, base 2, padded
  Span<int32_t> active;        ///< (matrices)
  /// Prepares round `round`; `partial` are the column sums of the one before.
  void prepare(int64_t round, Span<const Real> partial, int64_t parts) const;
};
/// Marks the matrices whose factors could overflow.
template <class Real>
void find_drifts(Scratch& scratch, const AttentionShape& s, const Rounds<Real>& rounds, Span<int32_t> drifts);

template <class Real, class T>
void add_gradient(Span<const Real> from, const GradSpan<T>& to);

/// The operands of a backward: packed sides, which lines take part, potentials of the last half-steps.
template <class F, class T>
struct BackwardOperands {
  using Real = typename F::Value;
  /// `ranks` columns of A and B are left room for.
  BackwardOperands(Scratch& scratch, const AttentionShape& s, const Backward& b, int64_t ranks);
  AttentionMasksView masks;
  ValidLines valid;
  Span<int32_t> taken;
  Side<F> queries, keys;
  Span<Real> dv;  ///< (B, M, H E), to be written
};
/// dQ, dK and dV in the order of the inputs: a tensor given as query and key receives both.
template <class F, class T>
void launch_gradients(const AttentionShape& s, const Backward& b, const BackwardOperands<F, T>& operands, const Rounds<typename F::Value>& rounds);

/// The gradient at the fixed point, in f64 whatever T is.
template <class T>
void implicit_backward(const AttentionShape& s, const Backward& b);

}  // namespace sinkgrad::cuda::streaming
