// Per batch entry and head, with S = scale Q K^T and P = Sinkhorn(S):
//   O = P V        dV = P^T dO      dS = undo(dO V^T)      dQ = scale dS K      dK = scale dS^T Q
// Heads are slices of the last dimension: the products take them by their row length, nothing is moved.
#include "core/op.h"
#include "ops/cpu/attention_matrix.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/sinkhorn.h"

namespace sinkgrad::cpu {
namespace {

struct Sizes {
  Sizes(std::span<const View> in, const Attrs& attrs)
      : batch(in[0].shape[0]),
        heads(attrs.integer("heads")),
        n(in[0].shape[1]),
        m(in[1].shape[1]),
        q_row(in[0].shape[2]),
        v_row(in[2].shape[2]),
        d(q_row / heads),
        e(v_row / heads) {}
  int64_t batch, heads, n, m;
  int64_t q_row, v_row;  // row lengths of Q and K, and of V and O
  int64_t d, e;          // per head
  int64_t q_at(int64_t b, int64_t h) const { return b * n * q_row + h * d; }
  int64_t k_at(int64_t b, int64_t h) const { return b * m * q_row + h * d; }
  int64_t v_at(int64_t b, int64_t h) const { return b * m * v_row + h * e; }
  int64_t o_at(int64_t b, int64_t h) const { return b * n * v_row + h * e; }

  /// body(i, next) for every matrix i; next is what the same thread takes after it, or -1. Threads share the matrices, or the rows of one
  /// after the other where there are too few of them to keep all threads busy.
  template <class Body>
  void each(int64_t passes, Body body) const {
    const int64_t count = batch * heads, workers = threads_of_loop(), share = (count + workers - 1) / workers;
    auto range = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i, i + 1 < end ? i + 1 : -1);
    };
    const bool balanced = 4 * count >= 3 * share * workers, small = n * m < kRowsSharedFrom;
    if (balanced || small)
      parallel_for(count, std::max(share, grain_for(n * m * passes)), range);
    else
      range(0, count);
  }
  static constexpr int64_t kRowsSharedFrom = 256 * 256;  ///< scores that make sharing one matrix worth the threads' meetings
};

template <class T>
void masked_scores(const Sizes& s, std::span<const View> in, double scale, Precision precision, int64_t b, int64_t h, T* x) {
  gemm(false, true, s.n, s.m, s.d, static_cast<T>(scale), in[0].as<T>() + s.q_at(b, h), s.q_row, in[1].as<T>() + s.k_at(b, h), s.q_row, T(0), x, s.m,
       precision);
  exclude_masked(in.subspan(3), b, s.n, s.m, x);
}

/// A matrix that the forward left to the log domain is left to it by the backward: its row maxima are NaN.
template <class T>
void mark_log_domain(T* row_max, int64_t n) {
  std::fill_n(row_max, n, std::numeric_limits<T>::quiet_NaN());
}
template <class T>
bool in_log_domain(const T* row_max, int64_t n) {
  return n > 0 && std::isnan(row_max[0]);
}

template <class T>
AttentionMatrix<T> matrix_of(const Sizes& s, std::span<const View> in, std::span<const View> saved, const SinkhornTask& task, double scale,
                             Precision precision, int64_t i, int64_t next) {
  const int64_t b = i / s.heads, h = i % s.heads, next_b = next / s.heads, next_h = next % s.heads;
  auto to_next = [&](int64_t (Sizes::*at)(int64_t, int64_t) const) { return next < 0 ? 0 : (s.*at)(next_b, next_h) - (s.*at)(b, h); };
  auto mask = [&](size_t k, int64_t offset) { return in[k] ? in[k].as<int32_t>() + offset : nullptr; };
  return {s.n,
          s.m,
          s.d,
          s.e,
          in[0].as<T>() + s.q_at(b, h),
          in[1].as<T>() + s.k_at(b, h),
          in[2].as<T>() + s.v_at(b, h),
          s.q_row,
          s.v_row,
          mask(3, b * s.m),
          mask(4, b * s.n),
          mask(5, in[5] && in[5].shape.rank() == 3 ? b * s.n * s.m : 0),
          static_cast<T>(scale),
          precision,
          task,
          sinkhorn_state<T>(saved, task, i),
          to_next(&Sizes::q_at),
          to_next(&Sizes::k_at),
          to_next(&Sizes::v_at),
          to_next(&Sizes::o_at),
          saved[3].as<T>() + i * s.n};
}

}  // namespace

void sinkhorn_attention_forward(const Forward& f) {
  const Sizes s(f.in, f.attrs);
  const SinkhornTask task = sinkhorn_task(f.attrs, s.n, s.m);
  const double scale = f.attrs.get("scale");
  dispatch(f.dtype(), [&]<class T>() {
    s.each(task.iterations + s.d + s.e, [&](int64_t i, int64_t next) {
      const int64_t b = i / s.heads, h = i % s.heads;
      T* o = f.out.as<T>() + s.o_at(b, h);
      if (attention_forward(matrix_of<T>(s, f.in, f.saved, task, scale, f.precision, i, next), o,
                            f.saved.size() > 4 ? f.saved[4].as<T>() + i * s.n * s.m : nullptr))
        return;
      mark_log_domain(f.saved[3].as<T>() + i * s.n, s.n);
      ScratchScope scratch;
      T* p = f.saved.size() > 4 ? f.saved[4].as<T>() + i * s.n * s.m : scratch.take<T>(s.n * s.m);
      masked_scores(s, f.in, scale, f.precision, b, h, p);
      SinkhornMatrix<T>(task, p, scratch).forward(sinkhorn_state<T>(f.saved, task, i));
      gemm(false, false, s.n, s.e, s.m, T(1), p, s.m, f.in[2].as<T>() + s.v_at(b, h), s.v_row, T(0), o, s.v_row, f.precision);
    });
  });
}

void sinkhorn_attention_backward(const Backward& g) {
  const Sizes s(g.in, g.attrs);
  const SinkhornTask task = sinkhorn_task(g.attrs, s.n, s.m);
  const double scale = g.attrs.get("scale");
  dispatch(g.dtype(), [&]<class T>() {
    auto beta = [&](size_t k) { return g.in_grad[k].add ? T(1) : T(0); };
    s.each(2 * (task.iterations + s.d + s.e), [&](int64_t i, int64_t next) {
      const int64_t b = i / s.heads, h = i % s.heads;
      if (task.gradient != SinkhornGradient::implicit && !in_log_domain(g.saved[3].as<T>() + i * s.n, s.n)) {
        auto at = [&](size_t k, int64_t offset) { return g.in_grad[k] ? g.in_grad[k].as<T>() + offset : nullptr; };
        const AttentionGradients<T> to{at(0, s.q_at(b, h)), at(1, s.k_at(b, h)), at(2, s.v_at(b, h)),
                                       g.in_grad[0].add,    g.in_grad[1].add,    g.in_grad[2].add};
        if (attention_backward(matrix_of<T>(s, g.in, g.saved, task, scale, g.precision, i, next), g.out.as<T>() + s.o_at(b, h),
                               g.out_grad.as<T>() + s.o_at(b, h), to))
          return;
      }
      ScratchScope scratch;
      T *x = scratch.take<T>(s.n * s.m), *p = scratch.take<T>(s.n * s.m), *ds = scratch.take<T>(s.n * s.m);
      const T *q = g.in[0].as<T>() + s.q_at(b, h), *k = g.in[1].as<T>() + s.k_at(b, h), *v = g.in[2].as<T>() + s.v_at(b, h),
              *d_out = g.out_grad.as<T>() + s.o_at(b, h);
      masked_scores(s, g.in, scale, g.precision, b, h, x);
      SinkhornMatrix<T> matrix(task, x, scratch);
      const SinkhornState<T> state = sinkhorn_state<T>(g.saved, task, i);
      matrix.plan(state, p);
      if (g.in_grad[0] || g.in_grad[1]) {
        gemm(false, true, s.n, s.m, s.e, T(1), d_out, s.v_row, v, s.v_row, T(0), ds, s.m, g.precision);
        matrix.backward(state, p, ds, scratch);
      }
      // In the order of the inputs: a tensor given as query and key receives both.
      if (const Grad& dq = g.in_grad[0])
        gemm(false, false, s.n, s.d, s.m, static_cast<T>(scale), ds, s.m, k, s.q_row, beta(0), dq.as<T>() + s.q_at(b, h), s.q_row, g.precision);
      if (const Grad& dk = g.in_grad[1])
        gemm(true, false, s.m, s.d, s.n, static_cast<T>(scale), ds, s.m, q, s.q_row, beta(1), dk.as<T>() + s.k_at(b, h), s.q_row, g.precision);
      if (const Grad& dv = g.in_grad[2])
        gemm(true, false, s.m, s.e, s.n, matrix.output_scale(), p, s.m, d_out, s.v_row, beta(2), dv.as<T>() + s.v_at(b, h), s.v_row, g.precision);
    });
  });
}

}  // namespace sinkgrad::cpu
