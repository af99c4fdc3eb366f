// Means over the n rows that count, q the row's label, p = softmax(x):
// cross_entropy: -(own log p_q + each sum_j log p_j)     dx_j = ((own + V each) p_j - each - own [j = q]) / n
//   torch:   each = smoothing / V        own = 1 - smoothing
//   fairseq: each = smoothing / (V - 1)  own = 1 - smoothing - each
// nll:           -x_q                                    dx_j = -[j = q] / n
// mse:           (x - t)^2                               dx = 2 (x - t) / count = -dt
#include <cmath>
#include <limits>

#include "core/op.h"
#include "core/parallel.h"
#include "ops/cpu/vector.h"

namespace sinkgrad::cpu {
namespace {

struct Rows {
  Rows(std::span<const View> in, const Attrs& attrs)
      : count(in[0].shape[0]), classes(in[0].shape[1]), labels(in[1].as<int32_t>()), ignore_index(attrs.integer("ignore_index")) {
    for (int64_t r = 0; r < count; ++r) counted += counts(r);
  }
  bool counts(int64_t r) const { return labels[r] != ignore_index; }

  /// loss(r) averaged over the rows that count, added up in their order.
  template <class T, class Loss>
  T mean(Loss loss) const {
    ScratchScope scratch;
    T* losses = scratch.take<T>(count);
    parallel_for(count, grain_for(classes * 8), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) losses[r] = counts(r) ? loss(r) : T(0);
    });
    double total = 0;
    for (int64_t r = 0; r < count; ++r) total += losses[r];
    return counted ? static_cast<T>(total / static_cast<double>(counted)) : T(0);
  }

  int64_t count, classes;
  const int32_t* labels;
  int64_t ignore_index, counted = 0;
};

template <class T>
struct Weights {
  Weights(const Attrs& attrs, int64_t classes) {
    const double smoothing = attrs.get("smoothing");
    const bool fairseq = attrs.flag("fairseq");
    const double share = smoothing / static_cast<double>(fairseq ? std::max<int64_t>(1, classes - 1) : classes);
    const double rest = fairseq ? 1 - smoothing - share : 1 - smoothing;
    each = static_cast<T>(share);
    own = static_cast<T>(rest);
    all = static_cast<T>(rest + static_cast<double>(classes) * share);
  }
  T each, own, all;  ///< all = own + V each
};

}  // namespace

void cross_entropy_forward(const Forward& f) {
  const Rows rows(f.in, f.attrs);
  const int64_t n = rows.classes;
  dispatch(f.dtype(), [&]<class T>() {
    const Weights<T> w(f.attrs, n);
    f.out.as<T>()[0] = rows.mean<T>([&](int64_t r) {
      ScratchScope scratch;
      T *shifted = scratch.take<T>(n), *e = scratch.take<T>(n);
      const T* x = f.in[0].as<T>() + r * n;
      // Everything is relative to the largest logit, so that large logits cost no digits. All logits -inf: as log_softmax.
      T top = vector_math<T>().max(x, n);
      if (top == -std::numeric_limits<T>::infinity()) top = 0;
      for (int64_t j = 0; j < n; ++j) shifted[j] = x[j] - top;
      const T total = vector_math<T>().exp_shift(shifted, T(0), e, n), log_total = total == 0 ? T(0) : std::log(total);
      f.saved[0].as<T>()[r] = top;
      f.saved[1].as<T>()[r] = log_total;
      T loss = 0;  // a weight of 0 asks nothing of logits that are -inf
      if (w.own != 0) loss += w.own * (log_total - shifted[rows.labels[r]]);
      if (w.each != 0) loss += w.each * (static_cast<T>(n) * log_total - vector_math<T>().sum(shifted, n));
      return loss;
    });
  });
}

void cross_entropy_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const Rows rows(b.in, b.attrs);
  const int64_t n = rows.classes;
  dispatch(b.dtype(), [&]<class T>() {
    const Weights<T> w(b.attrs, n);
    const T scale = b.out_grad.as<T>()[0] / static_cast<T>(std::max<int64_t>(1, rows.counted));
    const bool add = b.in_grad[0].add;
    parallel_for(rows.count, grain_for(n * 8), [&](int64_t begin, int64_t end) {
      ScratchScope scratch;
      T* p = scratch.take<T>(n);
      for (int64_t r = begin; r < end; ++r) {
        T* dx = b.in_grad[0].as<T>() + r * n;
        if (!rows.counts(r)) {
          if (!add) std::fill_n(dx, n, T(0));
          continue;
        }
        const T* x = b.in[0].as<T>() + r * n;
        const T top = b.saved[0].as<T>()[r], log_total = b.saved[1].as<T>()[r];
        for (int64_t j = 0; j < n; ++j) p[j] = x[j] - top;
        vector_math<T>().exp_shift(p, -log_total, p, n);
        for (int64_t j = 0; j < n; ++j) p[j] = w.all * p[j] - w.each;
        p[rows.labels[r]] -= w.own;
        for (int64_t j = 0; j < n; ++j) put(dx[j], scale * p[j], add);
      }
    });
  });
}

void nll_forward(const Forward& f) {
  const Rows rows(f.in, f.attrs);
  dispatch(f.dtype(),
           [&]<class T>() { f.out.as<T>()[0] = rows.mean<T>([&](int64_t r) { return -f.in[0].as<T>()[r * rows.classes + rows.labels[r]]; }); });
}

void nll_backward(const Backward& b) {
  const Grad& grad = b.in_grad[0];
  if (!grad) return;
  const Rows rows(b.in, b.attrs);
  dispatch(b.dtype(), [&]<class T>() {
    const T each = b.out_grad.as<T>()[0] / static_cast<T>(std::max<int64_t>(1, rows.counted));
    if (!grad.add) std::fill_n(grad.as<T>(), rows.count * rows.classes, T(0));
    for (int64_t r = 0; r < rows.count; ++r)
      if (rows.counts(r)) grad.as<T>()[r * rows.classes + rows.labels[r]] -= each;
  });
}

void mse_forward(const Forward& f) {
  const int64_t n = f.in[0].shape.count();
  dispatch(f.dtype(), [&]<class T>() {
    constexpr int64_t kChunk = 8192;
    const int64_t chunks = (n + kChunk - 1) / kChunk;
    ScratchScope scratch;
    T* sums = scratch.take<T>(chunks);
    parallel_for(n, kChunk, [&](int64_t begin, int64_t end) {
      ScratchScope chunk_scratch;
      T* d = chunk_scratch.take<T>(end - begin);
      for (int64_t i = begin; i < end; ++i) d[i - begin] = f.in[0].as<T>()[i] - f.in[1].as<T>()[i];
      sums[begin / kChunk] = vector_math<T>().dot(d, d, end - begin);
    });
    double total = 0;
    for (int64_t c = 0; c < chunks; ++c) total += sums[c];
    f.out.as<T>()[0] = static_cast<T>(total / static_cast<double>(n));
  });
}

void mse_backward(const Backward& b) {
  const int64_t n = b.in[0].shape.count();
  dispatch(b.dtype(), [&]<class T>() {
    const T scale = 2 * b.out_grad.as<T>()[0] / static_cast<T>(n);
    for (size_t k = 0; k < 2; ++k)
      if (const Grad& grad = b.in_grad[k])
        parallel_for(n, grain_for(4), [&](int64_t begin, int64_t end) {
          const T sign = k == 0 ? scale : -scale;
          const T *x = b.in[0].as<T>(), *t = b.in[1].as<T>();
          for (int64_t i = begin; i < end; ++i) put(grad.as<T>()[i], sign * (x[i] - t[i]), grad.add);
        });
  });
}

}  // namespace sinkgrad::cpu
