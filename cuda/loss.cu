// Means over the n rows that count, q the row's label, p = softmax(x):
// cross_entropy: -(own log p_q + each sum_j log p_j)     dx_j = ((own + V each) p_j - each - own [j = q]) / n
//   torch:   each = smoothing / V        own = 1 - smoothing
//   fairseq: each = smoothing / (V - 1)  own = 1 - smoothing - each
// nll:           -x_q                                    dx_j = -[j = q] / n
// mse:           (x - t)^2                               dx = 2 (x - t) / count = -dt
// cross_entropy reads x once forward (label smoothing a second time, from cache), once backward. A label that is neither a class nor
// ignore_index makes the loss and its row of the gradient NaN: the host cannot look at labels that lie on the device.
#include "cuda/fold.h"
#include "cuda/lines.h"

namespace sinkgrad::cuda {
namespace {

struct Labels {
  Labels(std::span<const View> in, const Attrs& attrs)
      : values(span<const int32_t>(in[1])), classes(in[0].shape[1]), ignore_index(attrs.integer("ignore_index")) {}
  __device__ int64_t operator[](int64_t row) const { return values[row]; }
  __device__ bool counts(int64_t label) const { return label != ignore_index; }
  __device__ bool is_class(int64_t label) const { return label >= 0 && label < classes; }
  Span<const int32_t> values;
  int64_t classes, ignore_index;
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

/// All numbers 0 .. n-1, folded into one.
FoldWalk<1> all_of(int64_t n) {
  FoldWalk<1> walk;
  walk.folded.add(n, {1});
  walk.folds_lines = true;
  return walk;
}

struct Tally {
  double sum;
  int64_t count;
};
struct AddTallies {
  __device__ Tally operator()(const Tally& a, const Tally& b) const { return {a.sum + b.sum, a.count + b.count}; }
};
/// The loss is a mean, and 0 where nothing counts.
template <class T>
struct PutMean {
  Span<T> loss;
  __device__ void operator()(int64_t, const Tally& t) const { loss[0] = t.count > 0 ? static_cast<T>(t.sum / static_cast<double>(t.count)) : T(0); }
};

struct CountedRow {
  Labels labels;
  __device__ int64_t operator()(const Offsets<1>& o) const { return labels.counts(labels[o.at[0]]) ? 1 : 0; }
};
template <class T>
struct PutShare {
  Span<const T> dy;
  Span<T> share;
  __device__ void operator()(int64_t, int64_t count) const { share[0] = dy[0] / static_cast<T>(count > 1 ? count : 1); }
};
/// share = dy / n
template <class T>
void share_of_rows(const Backward& b, const Labels& labels, const Span<T>& share) {
  fold(all_of(labels.values.count), Sum{}, int64_t{0}, CountedRow{labels}, PutShare<T>{span<const T>(b.out_grad), share});
}

template <class T, class Team>
__global__ void __launch_bounds__(kMostThreads<T, Team>, 1)
    cross_entropy_rows(Span<const T> x, Labels labels, Weights<T> w, Span<T> tops, Span<T> log_totals, Span<T> losses, Lines lines, Team team) {
  STATIC_SHARED(T, scratch, Team::kScratch);
#pragma unroll 1
  for (int64_t begin = 0; begin < lines.count; begin += team.per_grid()) {
    const int64_t row = team.line_of(begin), first = row * lines.length;
    const bool exists = row < lines.count;
    const int64_t label = exists ? labels[row] : labels.ignore_index, length = labels.counts(label) ? lines.length : 0;
    auto load = [&](int64_t k) -> T { return x[first + k]; };
    const LogSum<T> s = team_log_sum(team, log_sum_of<T>(team.rank(), length, team.threads(), load), scratch);
    // Everything is relative to the largest logit, so that large logits cost no digits. All logits -inf: as log_softmax.
    const T top = s.max > -infinity<T>() ? s.max : T(0);
    const T log_total = s.sum == T(0) ? T(0) : top == infinity<T>() ? not_a_number<T>() : log(s.sum);
    T shifted = 0;
    if (w.each != T(0)) {  // a weight of 0 asks nothing of logits that are -inf
      each_ahead(team.rank(), length, team.threads(), load, [&](int64_t, T v) { shifted += v - top; });
      shifted = team.reduce(shifted, Sum{}, scratch);
    }
    if (team.rank() != 0 || !exists) continue;
    tops[row] = top;
    log_totals[row] = log_total;
    T loss = 0;
    if (labels.counts(label) && !labels.is_class(label)) {
      loss = not_a_number<T>();
    } else if (labels.counts(label)) {
      if (w.own != T(0)) loss += w.own * (log_total - (load(label) - top));
      if (w.each != T(0)) loss += w.each * (static_cast<T>(length) * log_total - shifted);
    }
    losses[row] = loss;
  }
}

template <class T>
struct RowLoss {
  Span<const T> losses;
  Labels labels;
  __device__ Tally operator()(const Offsets<1>& o) const { return {static_cast<double>(losses[o.at[0]]), labels.counts(labels[o.at[0]]) ? 1 : 0}; }
};

void cross_entropy_forward(const Forward& f) {
  const Labels labels(f.in, f.attrs);
  const Lines lines(f.in[0].shape, 1);
  dispatch(f.dtype(), [&]<class T>() {
    Scratch scratch;
    const Span<T> losses = scratch.take<T>(lines.count);
    with_team<T>(lines, [&]<class Team>(Team team, const Launch& shape) {
      launch(KERNEL(cross_entropy_rows<T, Team>), shape, span<const T>(f.in[0]), labels, Weights<T>(f.attrs, lines.length), span<T>(f.saved[0]),
             span<T>(f.saved[1]), losses, lines, team);
    });
    fold(all_of(lines.count), AddTallies{}, Tally{0, 0}, RowLoss<T>{losses, labels}, PutMean<T>{span<T>(f.out)});
  });
}

template <class T, class Team>
__global__ void __launch_bounds__(kMostThreads<T, Team>, 1)
    cross_entropy_backward_rows(Span<const T> x, Labels labels, Weights<T> w, Span<const T> tops, Span<const T> log_totals, Span<const T> share,
                                GradSpan<T> dx, Lines lines, Team team) {
#pragma unroll 1
  for (int64_t row = team.line_of(0); row < lines.count; row += team.per_grid()) {
    const int64_t first = row * lines.length, label = labels[row];
    if (!labels.counts(label)) {
      if (!dx.add)
        for (int64_t k = team.rank(); k < lines.length; k += team.threads()) dx.put(first + k, T(0));
      continue;
    }
    const T top = tops[row], log_total = log_totals[row], scale = labels.is_class(label) ? static_cast<T>(share[0]) : not_a_number<T>();
    auto load = [&](int64_t k) -> T { return x[first + k]; };
    each_ahead(team.rank(), lines.length, team.threads(), load,
               [&](int64_t k, T v) { dx.put(first + k, scale * (w.all * exp((v - top) - log_total) - w.each - (k == label ? w.own : T(0)))); });
  }
}

void cross_entropy_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const Labels labels(b.in, b.attrs);
  const Lines lines(b.in[0].shape, 1);
  dispatch(b.dtype(), [&]<class T>() {
    Scratch scratch;
    const Span<T> share = scratch.take<T>(1);
    share_of_rows(b, labels, share);
    with_team<T>(lines, [&]<class Team>(Team team, const Launch& shape) {
      launch(KERNEL(cross_entropy_backward_rows<T, Team>), shape, span<const T>(b.in[0]), labels, Weights<T>(b.attrs, lines.length),
             span<const T>(b.saved[0]), span<const T>(b.saved[1]), share, span<T>(b.in_grad[0]), lines, team);
    });
  });
}

template <class T>
struct NegativeLogLikelihood {
  Span<const T> x;
  Labels labels;
  __device__ Tally operator()(const Offsets<1>& o) const {
    const int64_t row = o.at[0], label = labels[row];
    if (!labels.counts(label)) return {0, 0};
    return {labels.is_class(label) ? -static_cast<double>(x[row * labels.classes + label]) : not_a_number<double>(), 1};
  }
};

void nll_forward(const Forward& f) {
  const Labels labels(f.in, f.attrs);
  dispatch(f.dtype(), [&]<class T>() {
    fold(all_of(labels.values.count), AddTallies{}, Tally{0, 0}, NegativeLogLikelihood<T>{span<const T>(f.in[0]), labels},
         PutMean<T>{span<T>(f.out)});
  });
}

template <class T>
__global__ void subtract_at_labels(Labels labels, Span<const T> share, Span<T> dx) {
  for (int64_t row = thread_index(); row < labels.values.count; row += thread_count()) {
    const int64_t first = row * labels.classes, label = labels[row];
    if (!labels.counts(label)) continue;
    if (labels.is_class(label))
      dx[first + label] -= share[0];
    else
      for (int64_t k = 0; k < labels.classes; ++k) dx[first + k] = not_a_number<T>();
  }
}

void nll_backward(const Backward& b) {
  const Grad& grad = b.in_grad[0];
  if (!grad) return;
  const Labels labels(b.in, b.attrs);
  dispatch(b.dtype(), [&]<class T>() {
    Scratch scratch;
    const Span<T> share = scratch.take<T>(1);
    share_of_rows(b, labels, share);
    if (!grad.add) fill(span<T>(grad.view), T(0));
    launch(KERNEL(subtract_at_labels<T>), grid_stride(labels.values.count), labels, share, span<T>(grad.view));
  });
}

template <class T>
struct SquaredError {
  Span<const T> x, target;
  __device__ double operator()(const Offsets<1>& o) const {
    const T error = x[o.at[0]] - target[o.at[0]];
    return static_cast<double>(error * error);
  }
};
template <class T>
struct PutQuotient {
  Span<T> loss;
  double count;
  __device__ void operator()(int64_t, double sum) const { loss[0] = static_cast<T>(sum / count); }
};

void mse_forward(const Forward& f) {
  const int64_t n = f.in[0].shape.count();
  dispatch(f.dtype(), [&]<class T>() {
    fold(all_of(n), Sum{}, 0.0, SquaredError<T>{span<const T>(f.in[0]), span<const T>(f.in[1])},
         PutQuotient<T>{span<T>(f.out), static_cast<double>(n)});
  });
}

template <class T>
struct ScaledError {
  Span<const T> dy;
  T scale;
  __device__ T operator()(T x, T target) const { return scale * dy[0] * (x - target); }
};

void mse_backward(const Backward& b) {
  dispatch(b.dtype(), [&]<class T>() {
    const T scale = T(2) / static_cast<T>(b.in[0].shape.count());
    for (size_t k = 0; k < 2; ++k)
      if (b.in_grad[k])
        map(ScaledError<T>{span<const T>(b.out_grad), k == 0 ? scale : -scale}, span<T>(b.in_grad[k]), span<const T>(b.in[0]),
            span<const T>(b.in[1]));
  });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("cross_entropy", {cross_entropy_forward, cross_entropy_backward}) &&
                                         register_cuda_kernels("nll", {nll_forward, nll_backward}) &&
                                         register_cuda_kernels("mse", {mse_forward, mse_backward});

}  // namespace
}  // namespace sinkgrad::cuda
