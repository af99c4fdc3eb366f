// All three: z = (x - mean) r with r = 1 / sqrt(variance + epsilon), y = gain z + bias; dbias = sum dy, dgain = sum dy z.
// layer_norm:       dx = r (g - mean(g) - z mean(g z)) along a row, g = gain dy
// batch_norm_train: dx = gain r (dy - mean(dy) - z mean(dy z)) down a column
// batch_norm_eval:  dx = gain r dy
// Statistics are those of x minus the first element of the row or column, and squares are taken about the mean, so that a large mean
// costs no digits. layer_norm reads each tensor once and writes each once, both ways: rows are held in registers, and each block adds up
// what its rows give dgain and dbias, for a second launch to sum. Rows longer than kHeldLine are swept several times, from cache.
// batch_norm reads x once for both statistics and once for y; backward reads x and dy once for the sums and once for dx (eval: dy only).
#include "cuda/cudnn.h"
#include "cuda/fold.h"
#include "cuda/lines.h"

namespace sinkgrad::cuda {
namespace {

template <class T>
struct Two {
  T a, b;
};
struct AddTwo {
  template <class T>
  __device__ Two<T> operator()(const Two<T>& x, const Two<T>& y) const {
    return {x.a + y.a, x.b + y.b};
  }
};

/// How a row or column is mapped: z = ((x - origin) - shift) r.
template <class T>
__device__ T centred(T x, T origin, T shift) {
  return (x - origin) - shift;
}
template <class T>
__device__ T inverse_deviation(T variance, T epsilon) {
  return T(1) / sqrt(variance + epsilon);
}

/// The tensors of a layer norm.
template <class T>
struct LayerNorm {
  LayerNorm(std::span<const View> in, std::span<const View> saved, const Attrs& attrs)
      : x(span<const T>(in[0])),
        gain(span<const T>(in[1])),
        shift(span<T>(saved[0])),
        inverse(span<T>(saved[1])),
        epsilon(static_cast<T>(attrs.get("epsilon"))),
        lines(in[0].shape, in[0].shape.rank() - 1) {}
  Span<const T> x, gain;
  Span<T> shift, inverse;  ///< saved: mean relative to the first element, r
  T epsilon;
  Lines lines;
};

template <class T, class Team>
__global__ void __launch_bounds__(kHeldThreads, kHeldBlocks<T>) layer_norm_rows(LayerNorm<T> norm, Span<const T> bias, Span<T> y, bool vectors) {
  STATIC_SHARED(T, scratch, Team::kScratch);
  using Held = Row<T, Team>;
  const int length = static_cast<int>(norm.lines.length);
  const T count = static_cast<T>(length);
  typename Held::Values gain, offset, v;
  Held{length, vectors}.load(gain, norm.gain, 0);
  Held{length, vectors}.load(offset, bias, 0);
#pragma unroll 1
  for (int64_t begin = 0; begin < norm.lines.count; begin += Team::per_grid()) {
    const int64_t line = Team::line_of(begin), first = line * length;
    const bool exists = line < norm.lines.count;
    const Held row{exists ? length : 0, vectors};
    row.load(v, norm.x, first);
    const T origin = exists ? static_cast<T>(norm.x[first]) : T(0);
    T total = 0, squares = 0;
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      v[e] = row.has(e) ? v[e] - origin : T(0);
      total += v[e];
    }
    const T shift = Team::reduce(total, Sum{}, scratch) / count;
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      v[e] = row.has(e) ? v[e] - shift : T(0);
      squares += v[e] * v[e];
    }
    const T inverse = inverse_deviation(Team::reduce(squares, Sum{}, scratch) / count, norm.epsilon);
#pragma unroll
    for (int e = 0; e < kHeld; ++e) v[e] = v[e] * inverse * gain[e] + offset[e];
    row.put(GradSpan<T>{y}, first, v);
    if (exists && Team::rank() == 0) {
      norm.shift[line] = shift;
      norm.inverse[line] = inverse;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kSweepThreads<T>, 1) layer_norm_sweep(LayerNorm<T> norm, Span<const T> bias, Span<T> y, Sweep team) {
  STATIC_SHARED(T, scratch, Sweep::kScratch);
  const int64_t length = norm.lines.length;
#pragma unroll 1
  for (int64_t line = team.line_of(0); line < norm.lines.count; line += team.per_grid()) {
    const int64_t first = line * length;
    const T origin = norm.x[first], count = static_cast<T>(length);
    auto load = [&](int64_t k) -> T { return norm.x[first + k] - origin; };
    T total = 0, squares = 0;
    each_ahead(team.rank(), length, team.threads(), load, [&](int64_t, T v) { total += v; });
    const T shift = team.reduce(total, Sum{}, scratch) / count;
    each_ahead(team.rank(), length, team.threads(), load, [&](int64_t, T v) { squares += (v - shift) * (v - shift); });
    const T inverse = inverse_deviation(team.reduce(squares, Sum{}, scratch) / count, norm.epsilon);
    each_ahead(team.rank(), length, team.threads(), load, [&](int64_t k, T v) { y[first + k] = (v - shift) * inverse * norm.gain[k] + bias[k]; });
    if (team.rank() == 0) {
      norm.shift[line] = shift;
      norm.inverse[line] = inverse;
    }
  }
}

void layer_norm_forward(const Forward& f) {
  if (f.out.shape.count() == 0) return;
  dispatch(f.dtype(), [&]<class T>() {
    const LayerNorm<T> norm(f.in, f.saved, f.attrs);
    const auto bias = span<const T>(f.in[2]);
    const auto y = span<T>(f.out);
    with_team<T>(norm.lines, [&]<class Team>(Team team, const Launch& shape) {
      if constexpr (Team::kHolds)
        launch(KERNEL(layer_norm_rows<T, Team>), shape, norm, bias, y, rows_take_vectors(norm.lines.length, norm.x, norm.gain, bias, y));
      else
        launch(KERNEL(layer_norm_sweep<T>), shape, norm, bias, y, team);
    });
  });
}

/// What the rows of a block give dgain and dbias, one after the other: partial (blocks, 2, length).
template <class T, class Team>
struct GainAndBias {
  typename Row<T, Team>::Values gain = {}, bias = {};

  __device__ void add(int e, T dy, T z) {
    gain[e] += dy * z;
    bias[e] += dy;
  }
  __device__ void put(const Row<T, Team>& columns, const Span<T>& partial) {
    const int64_t length = columns.length, first = static_cast<int64_t>(blockIdx.x) * 2 * length;
    if constexpr (Team::kSize == 0) {
#pragma unroll
      for (int e = 0; e < kHeld; ++e)
        if (columns.has(e)) {
          partial[first + columns.index(e)] = gain[e];
          partial[first + length + columns.index(e)] = bias[e];
        }
    } else {
      constexpr int kColumns = Team::kSize * kHeld, kWarps = kRowThreads / kWarp;
      // The teams of a warp by exchange, then the warps in their order.
      STATIC_SHARED(Two<T>, sums, kWarps * kColumns);
#pragma unroll
      for (int e = 0; e < kHeld; ++e) {
        const Two<T> sum = warp_reduce(Two<T>{gain[e], bias[e]}, AddTwo{}, kWarp, Team::kSize);
        if (lane_index() < Team::kSize) sums[warp_index() * kColumns + columns.index(e)] = sum;
      }
      block_sync();
      for (int k = static_cast<int>(threadIdx.x); k < length; k += static_cast<int>(blockDim.x)) {
        Two<T> sum = sums[k];
        for (int w = 1; w < kWarps; ++w) sum = AddTwo{}(sum, static_cast<Two<T>>(sums[w * kColumns + k]));
        partial[first + k] = sum.a;
        partial[first + length + k] = sum.b;
      }
    }
  }
};

/// `dx` or `partial` may be absent.
template <class T, class Team>
__global__ void __launch_bounds__(kHeldThreads)
    layer_norm_backward_rows(LayerNorm<T> norm, Span<const T> dy, GradSpan<T> dx, Span<T> partial, bool vectors) {
  STATIC_SHARED(Two<T>, scratch, Team::kScratch);
  using Held = Row<T, Team>;
  const int length = static_cast<int>(norm.lines.length);
  const T share = T(1) / static_cast<T>(length);
  const Held columns{length, vectors};
  GainAndBias<T, Team> sums;
#pragma unroll 1
  for (int64_t begin = 0; begin < norm.lines.count; begin += Team::per_grid()) {
    const int64_t line = Team::line_of(begin), first = line * length;
    const bool exists = line < norm.lines.count;
    const Held row{exists ? length : 0, vectors};
    typename Held::Values z, g, gain;
    row.load(z, norm.x, first);
    row.load(g, dy, first);
    const T origin = exists ? static_cast<T>(norm.x[first]) : T(0), shift = exists ? static_cast<T>(norm.shift[line]) : T(0),
            inverse = exists ? static_cast<T>(norm.inverse[line]) : T(0);
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      z[e] = row.has(e) ? centred(z[e], origin, shift) * inverse : T(0);
      sums.add(e, g[e], z[e]);
    }
    if (!dx) continue;
    columns.load(gain, norm.gain, 0);
    Two<T> mean{0, 0};
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      g[e] *= gain[e];
      mean = AddTwo{}(mean, Two<T>{g[e], g[e] * z[e]});
    }
    mean = Team::reduce(mean, AddTwo{}, scratch);
#pragma unroll
    for (int e = 0; e < kHeld; ++e) g[e] = inverse * (g[e] - mean.a * share - z[e] * (mean.b * share));
    row.put(dx, first, g);
  }
  if (partial) sums.put(columns, partial);
}

template <class T>
__global__ void __launch_bounds__(kSweepThreads<T>, 1) layer_norm_backward_sweep(LayerNorm<T> norm, Span<const T> dy, GradSpan<T> dx, Sweep team) {
  STATIC_SHARED(Two<T>, scratch, Sweep::kScratch);
  const int64_t length = norm.lines.length;
  const T share = T(1) / static_cast<T>(length);
#pragma unroll 1
  for (int64_t line = team.line_of(0); line < norm.lines.count; line += team.per_grid()) {
    const int64_t first = line * length;
    const T origin = norm.x[first], shift = norm.shift[line], inverse = norm.inverse[line];
    auto load = [&](int64_t k) { return Two<T>{centred<T>(norm.x[first + k], origin, shift) * inverse, dy[first + k] * norm.gain[k]}; };
    Two<T> mean{0, 0};
    each_ahead(team.rank(), length, team.threads(), load, [&](int64_t, const Two<T>& v) { mean = AddTwo{}(mean, Two<T>{v.b, v.b * v.a}); });
    mean = team.reduce(mean, AddTwo{}, scratch);
    each_ahead(team.rank(), length, team.threads(), load,
               [&](int64_t k, const Two<T>& v) { dx.put(first + k, inverse * (v.b - mean.a * share - v.a * (mean.b * share))); });
  }
}

/// What an element adds to dgain and dbias of its column; offsets: element, row, first element of the row.
template <class T>
struct LayerTerm {
  LayerNorm<T> norm;
  Span<const T> dy;
  __device__ Two<T> operator()(const Offsets<3>& o) const {
    const T d = dy[o.at[0]];
    return {d * (centred<T>(norm.x[o.at[0]], norm.x[o.at[2]], norm.shift[o.at[1]]) * norm.inverse[o.at[1]]), d};
  }
};
template <class T>
struct PutTwo {
  Span<T> a, b;
  __device__ void operator()(int64_t k, const Two<T>& v) const {
    a[k] = v.a;
    b[k] = v.b;
  }
};
/// Stores or adds the gradients of gain and bias, one after the other: they may be the same memory.
template <class T>
void put_gain_and_bias(const Backward& b, const Span<const T>& dgain, const Span<const T>& dbias) {
  if (b.in_grad[1]) map(Copy{}, span<T>(b.in_grad[1]), dgain);
  if (b.in_grad[2]) map(Copy{}, span<T>(b.in_grad[2]), dbias);
}

void layer_norm_backward(const Backward& b) {
  if (b.in[1].shape.count() == 0) return;
  const bool wants_sums = b.in_grad[1] || b.in_grad[2];
  dispatch(b.dtype(), [&]<class T>() {
    const LayerNorm<T> norm(b.in, b.saved, b.attrs);
    const Lines& lines = norm.lines;
    const auto dy = span<const T>(b.out_grad);
    const GradSpan<T> dx = span<T>(b.in_grad[0]);
    Scratch scratch;
    Span<T> partial;
    const bool holds = lines.length <= kHeldLine;
    int64_t blocks = 0;
    with_team<T>(lines, [&]<class Team>(Team team, Launch shape) {
      if constexpr (Team::kHolds) {
        // Enough threads to keep the memory busy, and as few partial sums as that allows.
        constexpr int kPerProcessor = 768;
        if (wants_sums) shape.blocks = std::min(shape.blocks, static_cast<int64_t>(multiprocessors()) * (kPerProcessor / shape.threads));
        blocks = shape.blocks;
        if (wants_sums) partial = scratch.take<T>(blocks * 2 * lines.length);
        launch(KERNEL(layer_norm_backward_rows<T, Team>), shape, norm, dy, dx, partial,
               rows_take_vectors(lines.length, norm.x, dy, norm.gain, dx.data));
      } else if (dx) {
        launch(KERNEL(layer_norm_backward_sweep<T>), shape, norm, dy, dx, team);
      }
    });
    if (!wants_sums) return;
    if (holds) {
      FoldWalk<1> walk;
      walk.kept.add(lines.length, {1});
      walk.folded.add(blocks, {2 * lines.length});
      for (size_t k = 1; k <= 2; ++k) {
        const int64_t begin = static_cast<int64_t>(k - 1) * lines.length;
        const auto values = blocks > 0 ? partial.part(begin, partial.count - begin) : Span<T>{};
        if (b.in_grad[k]) fold(walk, Sum{}, T(0), ElementOf<T>{values}, ScaledSum<T>{span<T>(b.in_grad[k]), T(1)});
      }
    } else {
      FoldWalk<3> walk;
      walk.kept.add(lines.length, {1, 0, 0});
      walk.folded.add(lines.count, {lines.length, 1, lines.length});
      const Span<T> dgain = scratch.take<T>(lines.length), dbias = scratch.take<T>(lines.length);
      fold(walk, AddTwo{}, Two<T>{0, 0}, LayerTerm<T>{norm, dy}, PutTwo<T>{dgain, dbias});
      put_gain_and_bias<T>(b, dgain, dbias);
    }
  });
}

/// Number, mean and squared distance from it, summed, of some elements.
template <class T>
struct Moments {
  T count, mean, squares;
};
struct MergeMoments {
  template <class T>
  __device__ Moments<T> operator()(const Moments<T>& a, const Moments<T>& b) const {
    const T count = a.count + b.count, weight = count > T(0) ? b.count / count : T(0), distance = b.mean - a.mean;
    return {count, a.mean + distance * weight, a.squares + b.squares + distance * distance * (a.count * weight)};
  }
};
constexpr int kMomentRows = 8;

/// A matrix (rows, columns) whose columns batch norm maps. Statistics of the batch are relative to its first row, the origin; given ones
/// are the origin themselves, and there is no shift.
template <class T>
struct BatchNorm {
  BatchNorm(std::span<const View> in, const Attrs& attrs)
      : x(span<const T>(in[0])),
        gain(span<const T>(in[1])),
        columns(in[0].shape[-1]),
        rows(in[0].shape.count(0, in[0].shape.rank() - 1)),
        epsilon(static_cast<T>(attrs.get("epsilon"))) {}
  void use_batch(std::span<const View> saved) {
    origin = x.part(0, columns);
    variance = span<const T>(saved[1]);
    shift = span<const T>(saved[2]);
  }
  void use_given(std::span<const View> in) {
    origin = span<const T>(in[3]);
    variance = span<const T>(in[4]);
  }
  /// y (rows, columns) with any number of matrices, then of lists of one value per column.
  template <int matrices, int lists>
  Walk<1 + matrices + lists> walk() const {
    Walk<1 + matrices + lists> w;
    typename Walk<1 + matrices + lists>::Strides along, down;
    for (size_t k = 0; k < 1 + matrices + lists; ++k) {
      along[k] = 1;
      down[k] = k <= matrices ? columns : 0;
    }
    w.add(columns, along);
    w.add(rows, down);
    return w;
  }
  /// The columns, folding all rows, or groups of them.
  FoldWalk<2> fold_rows(int64_t group = 1) const {
    FoldWalk<2> w;
    w.kept.add(columns, {1, 1});
    w.folded.add((rows + group - 1) / group, {group * columns, 0});
    return w;
  }
  Span<const T> x, gain, origin, shift, variance;
  int64_t columns, rows;
  T epsilon;
};

/// The moments of a group of rows; offsets: element of the first of them, column.
template <class T>
struct MomentsTerm {
  Span<const T> x;
  int64_t columns;
  __device__ Moments<T> operator()(const Offsets<2>& o) const {
    const T origin = x[o.at[1]];
    T v[kMomentRows], count = 0, mean = 0, squares = 0;
#pragma unroll
    for (int r = 0; r < kMomentRows; ++r) {
      const int64_t i = o.at[0] + r * columns;
      v[r] = i < x.count ? x[i] - origin : T(0);
      mean += v[r];
      count += i < x.count ? T(1) : T(0);
    }
    mean /= count;
#pragma unroll
    for (int r = 0; r < kMomentRows; ++r)
      if (o.at[0] + r * columns < x.count) squares += (v[r] - mean) * (v[r] - mean);
    return {count, mean, squares};
  }
};
template <class T>
struct PutStatistics {
  Span<const T> x;
  Span<T> mean, variance, shift;
  int64_t rows;
  __device__ void operator()(int64_t j, const Moments<T>& m) const {
    mean[j] = x[j] + m.mean;
    variance[j] = m.squares / static_cast<T>(rows);
    shift[j] = m.mean;
  }
};

/// gain r
template <class T>
struct Factor {
  T epsilon;
  __device__ T operator()(T gain, T variance) const { return gain * inverse_deviation(variance, epsilon); }
};
struct Normalise {
  template <class T>
  __device__ T operator()(T x, T origin, T shift, T factor, T bias) const {
    return centred(x, origin, shift) * factor + bias;
  }
  template <class T>
  __device__ T operator()(T x, T origin, T factor, T bias) const {
    return (x - origin) * factor + bias;
  }
};

template <bool of_batch>
void batch_norm_forward(const Forward& f) {
  if (of_batch && prefers_cudnn_batch_norm() && cudnn_batch_norm_forward(f)) return;
  dispatch(f.dtype(), [&]<class T>() {
    BatchNorm<T> norm(f.in, f.attrs);
    const auto bias = span<const T>(f.in[2]);
    const GradSpan<T> y{span<T>(f.out)};
    if constexpr (of_batch) {
      fold(norm.fold_rows(kMomentRows), MergeMoments{}, Moments<T>{0, 0, 0}, MomentsTerm<T>{norm.x, norm.columns},
           PutStatistics<T>{norm.x, span<T>(f.saved[0]), span<T>(f.saved[1]), span<T>(f.saved[2]), norm.rows});
      norm.use_batch(f.saved);
    } else {
      norm.use_given(f.in);
    }
    Scratch scratch;
    const Span<T> factor = scratch.take<T>(norm.columns);
    map(Factor<T>{norm.epsilon}, GradSpan<T>{factor}, norm.gain, norm.variance);
    if constexpr (of_batch)
      map(norm.template walk<1, 4>(), Normalise{}, y, norm.x, norm.origin, norm.shift, Span<const T>(factor), bias);
    else
      map(norm.template walk<1, 3>(), Normalise{}, y, norm.x, norm.origin, Span<const T>(factor), bias);
  });
}

/// dy (x - mean) and dy; offsets: element, column.
template <class T>
struct BatchTerm {
  BatchNorm<T> norm;
  Span<const T> dy;
  __device__ Two<T> operator()(const Offsets<2>& o) const {
    const T d = dy[o.at[0]], shift = norm.shift ? static_cast<T>(norm.shift[o.at[1]]) : T(0);
    return {d * centred<T>(norm.x[o.at[0]], norm.origin[o.at[1]], shift), d};
  }
};
/// From the sums of those: dgain, dbias, and mean(dy) and mean(dy z) r, which dx takes from dy and from x - mean.
template <class T>
struct PutSums {
  BatchNorm<T> norm;
  Span<T> dgain, dbias, mean, slope;
  __device__ void operator()(int64_t j, const Two<T>& v) const {
    const T inverse = inverse_deviation<T>(norm.variance[j], norm.epsilon), share = T(1) / static_cast<T>(norm.rows);
    dgain[j] = v.a * inverse;
    dbias[j] = v.b;
    mean[j] = v.b * share;
    slope[j] = v.a * inverse * inverse * share;
  }
};
struct BatchSlope {
  template <class T>
  __device__ T operator()(T x, T dy, T origin, T shift, T factor, T mean, T slope) const {
    return factor * (dy - mean - centred(x, origin, shift) * slope);
  }
};
struct Product {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a * b;
  }
};

template <bool of_batch>
void batch_norm_backward(const Backward& b) {
  if (of_batch && prefers_cudnn_batch_norm() && cudnn_batch_norm_backward(b)) return;
  dispatch(b.dtype(), [&]<class T>() {
    BatchNorm<T> norm(b.in, b.attrs);
    if constexpr (of_batch)
      norm.use_batch(b.saved);
    else
      norm.use_given(b.in);
    const auto dy = span<const T>(b.out_grad);
    const GradSpan<T> dx = span<T>(b.in_grad[0]);
    Scratch scratch;
    auto take = [&] { return scratch.take<T>(norm.columns); };
    const Span<T> factor = take(), dgain = take(), dbias = take(), mean = take(), slope = take();
    if (of_batch || b.in_grad[1] || b.in_grad[2])
      fold(norm.fold_rows(), AddTwo{}, Two<T>{0, 0}, BatchTerm<T>{norm, dy}, PutSums<T>{norm, dgain, dbias, mean, slope});
    if (dx) {
      map(Factor<T>{norm.epsilon}, GradSpan<T>{factor}, norm.gain, norm.variance);
      const Span<const T> scale = factor;
      if constexpr (of_batch)
        map(norm.template walk<2, 5>(), BatchSlope{}, dx, norm.x, dy, norm.origin, norm.shift, scale, Span<const T>(mean), Span<const T>(slope));
      else
        map(norm.template walk<1, 1>(), Product{}, dx, dy, scale);
    }
    put_gain_and_bias<T>(b, dgain, dbias);
  });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("layer_norm", {layer_norm_forward, layer_norm_backward}) &&
                                         register_cuda_kernels("batch_norm_train", {batch_norm_forward<true>, batch_norm_backward<true>}) &&
                                         register_cuda_kernels("batch_norm_eval", {batch_norm_forward<false>, batch_norm_backward<false>});

}  // namespace
}  // namespace sinkgrad::cuda
