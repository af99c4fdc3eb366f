// Reductions over any dimensions, in an order that depends on the sizes alone: the same bits every time, on every GPU.
// A block takes a tile of outputs and gives each a power of two of its threads, so that neighbours read neighbouring memory both where
// lines and where columns are folded. Few outputs of many elements are split among blocks; a second launch combines their results.
// Every tensor is read once; what the first launch leaves to the second is at most 1/128 of that.
#pragma once
#include <algorithm>

#include "cuda/reduce.h"
#include "cuda/walk.h"

namespace sinkgrad::cuda {

/// The grid of a reduction: dimensions that the outputs have, and those that are folded.
template <int n>
struct FoldWalk {
  FoldWalk() = default;
  /// Broadcasts `shapes` to `big`; what shape number `target` does not have is folded.
  FoldWalk(const Shape& big, const std::array<Shape, n>& shapes, size_t target) {
    bool innermost = true;
    Walk<n>::each_dimension(big, shapes, [&](int64_t size, const typename Walk<n>::Strides& strides) {
      if (size == 1) return;
      const bool folds = strides[target] == 0;
      (folds ? folded : kept).add(size, strides);
      if (innermost) folds_lines = folds;
      innermost = false;
    });
  }
  Walk<n> kept, folded;
  bool folds_lines = false;  ///< the innermost dimension is folded
};

constexpr int kLogFoldThreads = 8, kFoldThreads = 1 << kLogFoldThreads;

struct FoldPlan {
  /// `neighbours` outputs at least, a power of two, are taken by neighbouring threads.
  FoldPlan(int64_t outputs_, int64_t folded_, bool folds_lines_, int64_t neighbours) : folds_lines(folds_lines_), outputs(outputs_), folded(folded_) {
    constexpr int64_t kShare = 8, kSplitShare = 16, kBlocks = 1024;
    // Short lines cost less in one thread, since cache holds them; in longer ones eight threads read a sector.
    const int64_t least = folds_lines && folded > 2 * kShare ? 8 : 1, enough = std::bit_ceil(static_cast<uint64_t>((folded + kShare - 1) / kShare));
    log_lanes = std::bit_width(static_cast<uint64_t>(std::min(std::max(enough, least), kFoldThreads / neighbours))) - 1;
    tiles = (outputs + columns() - 1) / columns();
    splits = std::max(int64_t{1}, std::min(kBlocks / tiles, folded / (lanes() * kSplitShare)));
    chunk = (folded + splits - 1) / splits;
  }
  __host__ __device__ int lanes() const { return 1 << log_lanes; }
  __host__ __device__ int columns() const { return kFoldThreads >> log_lanes; }
  /// Which of the threads of its output thread t is, and which of the tile's outputs that is.
  __device__ int lane(int t) const { return folds_lines ? t & (lanes() - 1) : t >> (kLogFoldThreads - log_lanes); }
  __device__ int column(int t) const { return folds_lines ? t >> log_lanes : t & (columns() - 1); }
  /// From one thread of an output to its next.
  __device__ int step() const { return folds_lines ? 1 : columns(); }

  bool folds_lines;
  int log_lanes;
  int64_t outputs, folded;  ///< their numbers
  int64_t tiles, splits;    ///< a block for each pair
  int64_t chunk;            ///< folded elements of a split
};

/// result(k, value) for each output k, where value combines `start` and term(offsets) of all elements folded into it; or the partial
/// values, by split and output.
template <class V, int n, class Op, class Term, class Result>
__global__ void fold_kernel(FoldPlan plan, Walk<n> kept, Walk<n> folded, Op op, V start, Term term, Result result, Span<V> partial) {
  STATIC_SHARED(V, values, kFoldThreads);
  constexpr int kBatch = 4;  // loads under way at once: all offsets come first, terms have no branches
  const int t = static_cast<int>(threadIdx.x), lane = plan.lane(t), lanes = plan.lanes();
  const auto tiles = static_cast<unsigned>(plan.tiles), split = blockIdx.x / tiles;
  const int64_t output = int64_t{blockIdx.x - split * tiles} * plan.columns() + plan.column(t);
  V v[kBatch];
#pragma unroll
  for (V& each : v) each = start;
  if (output < plan.outputs) {
    const Offsets<n> first = kept(output);
    const int64_t begin = split * plan.chunk, end = begin + plan.chunk < plan.folded ? begin + plan.chunk : plan.folded;
    int64_t i = begin + lane;
    for (; i + (kBatch - 1) * lanes < end; i += kBatch * lanes) {
      Offsets<n> o[kBatch];
      V x[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) o[b] = folded(i + b * lanes, first);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) x[b] = term(o[b]);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) v[b] = op(v[b], x[b]);
    }
#pragma unroll 1
    for (; i < end; i += lanes) v[0] = op(v[0], term(folded(i, first)));
  }
  V value = op(op(v[0], v[1]), op(v[2], v[3]));
  values[t] = value;
  for (int half = lanes / 2; half > 0; half /= 2) {
    block_sync();
    if (lane < half) {
      value = op(value, static_cast<V>(values[t + half * plan.step()]));
      values[t] = value;
    }
  }
  if (lane != 0 || output >= plan.outputs) return;
  if (partial)
    partial[split * plan.outputs + output] = value;
  else
    result(output, value);
}

/// The term of a tensor's elements themselves.
template <class T>
struct ElementOf {
  Span<const T> x;
  template <int n>
  __device__ T operator()(const Offsets<n>& o) const {
    return x[o.at[0]];
  }
};

/// Calls result(k, value) once for each output k; see fold_kernel. `op` must not mind the order, `start` must be neutral.
template <class V, int n, class Op, class Term, class Result>
void fold(const FoldWalk<n>& walk, const Op& op, V start, const Term& term, const Result& result) {
  const int64_t outputs = walk.kept.count(), folded = walk.folded.count();
  if (outputs == 0) return;
  const auto neighbours = [](int64_t count, int64_t most) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::min(count, most))));
  };
  constexpr int64_t kLine = 32, kSector = 8;  // elements; partial values come from cache, where a sector is enough
  const FoldPlan plan(outputs, folded, walk.folds_lines, walk.folds_lines ? 1 : neighbours(walk.kept.inner_size(), kLine));
  const Launch shape = {.blocks = plan.tiles * plan.splits, .threads = kFoldThreads};
  if (plan.splits == 1) {
    launch(KERNEL(fold_kernel<V, n, Op, Term, Result>), shape, plan, walk.kept, walk.folded, op, start, term, result, Span<V>{});
    return;
  }
  Scratch scratch;
  const Span<V> partial = scratch.take<V>(outputs * plan.splits);
  launch(KERNEL(fold_kernel<V, n, Op, Term, Result>), shape, plan, walk.kept, walk.folded, op, start, term, result, partial);
  FoldWalk<1> rest;
  rest.kept.add(outputs, {1});
  rest.folded.add(plan.splits, {outputs});
  FoldPlan last(outputs, plan.splits, false, neighbours(outputs, kSector));
  launch(KERNEL(fold_kernel<V, 1, Op, ElementOf<V>, Result>), {.blocks = last.tiles, .threads = kFoldThreads}, last, rest.kept, rest.folded, op,
         start, ElementOf<V>{partial}, result, Span<V>{});
}

/// y_k = scale times the sum.
template <class T>
struct ScaledSum {
  GradSpan<T> y;
  T scale;
  __device__ void operator()(int64_t k, T sum) const { y.put(k, scale * sum); }
};
/// small = scale times the sum over all elements of `big` that each of its elements stands for.
template <class T>
void sum_to(const Span<const T>& big, const Shape& big_shape, const GradSpan<T>& small, const Shape& small_shape, T scale) {
  fold(FoldWalk<2>(big_shape, {big_shape, small_shape}, 1), Sum{}, T(0), ElementOf<T>{big}, ScaledSum<T>{small, scale});
}

template <class T>
struct Scale {
  T scale;
  __device__ T operator()(T x) const { return scale * x; }
};
/// big = scale times `small`, broadcast.
template <class T>
void expand(const Span<const T>& small, const Shape& small_shape, const GradSpan<T>& big, const Shape& big_shape, T scale) {
  map(Walk<2>(big_shape, {big_shape, small_shape}), Scale<T>{scale}, big, small);
}

}  // namespace sinkgrad::cuda
