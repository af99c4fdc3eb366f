// An output and two operands that broadcast to it, walked together in runs along which each advances by 0 or 1.
// The walk covers one of the three, the target, in parallel; what one target element stands for in the output comes in
// row-major order, so that sums into a broadcast operand have one order on any number of threads.
#pragma once
#include <array>
#include <type_traits>

#include "core/op.h"
#include "core/parallel.h"
#include "ops/broadcast.h"
#include "ops/cpu/vector.h"

namespace sinkgrad::cpu {

class BroadcastWalk {
 public:
  enum Member { a, b, out };
  static constexpr int64_t kBlock = 1024;  ///< the longest run and the widest tile

  /// Element offsets into a, b and out.
  using Offsets = std::array<int64_t, 3>;
  struct Run {
    int64_t a, b, out, length;
  };

  /// `width` consecutive elements of the target, from `begin` on.
  struct Tile {
    const BroadcastWalk& walk;
    Offsets at;
    int64_t begin, width;

    /// body(run) for all output elements behind this tile. Element j of a run belongs to element column(j) of the tile.
    template <class Body>
    void runs(Body body) const {
      const int64_t length = walk.folds_runs() ? walk.inner_.size : width;
      for (int64_t r = 0; r < walk.folded_.count(); ++r) {
        const Offsets o = walk.folded_.offsets(r, at);
        for (int64_t j = 0; j < length; j += kBlock)
          body(Run{o[a] + j * walk.inner_.stride[a], o[b] + j * walk.inner_.stride[b], o[out] + j, std::min(kBlock, length - j)});
      }
    }
    int64_t column(int64_t j) const { return walk.folds_runs() ? 0 : j; }

    /// Adds one term for each element of a run to the sums of the tile's elements.
    template <class T>
    void fold(const T* terms, int64_t length, T* sums) const {
      if (walk.folds_runs())
        sums[0] += vector_math<T>().sum(terms, length);
      else
        for (int64_t j = 0; j < length; ++j) sums[j] += terms[j];
    }
  };

  BroadcastWalk(const Shape& shape_a, const Shape& shape_b, const Shape& shape_out, Member target) : target_(target) {
    const BroadcastStrides strides[] = {{shape_a, shape_out}, {shape_b, shape_out}, {shape_out, shape_out}};
    Dims dims;
    for (int i = 0; i < shape_out.rank(); ++i) {
      const auto k = static_cast<size_t>(i);
      if (shape_out[i] != 1) dims.append({shape_out[i], {strides[a].stride[k], strides[b].stride[k], strides[out].stride[k]}});
    }
    if (dims.rank > 0) inner_ = dims.dim[--dims.rank];
    for (size_t i = 0; i < dims.rank; ++i) (dims.dim[i].stride[target] ? kept_ : folded_).push_back(dims.dim[i]);
  }

  /// body(tile), in parallel over the target.
  template <class Body>
  void each_tile(Body body) const {
    // Narrow tiles where many rows are folded: several threads share the columns, and a tile's sums stay in registers or L1.
    const int64_t width = folds_runs() ? 1 : folded_.count() == 1 ? kBlock : 64;
    const int64_t row = folds_runs() ? 1 : inner_.size, tiles = (row + width - 1) / width;
    const int64_t cost = folded_.count() * (folds_runs() ? inner_.size : std::min(width, row));
    parallel_for(kept_.count() * tiles, grain_for(cost), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t j = i % tiles * width;
        Offsets at = kept_.offsets(i / tiles, {});
        for (size_t m = 0; m < at.size(); ++m) at[m] += j * inner_.stride[m];
        body(Tile{*this, at, at[target_], std::min(width, row - j)});
      }
    });
  }

  /// body(step of a, step of b): each a compile-time 0 or 1, so that loops over runs vectorise.
  template <class Body>
  void with_steps(Body body) const {
    constexpr std::integral_constant<int64_t, 0> zero;
    constexpr std::integral_constant<int64_t, 1> one;
    if (!inner_.stride[a])
      body(zero, one);
    else if (!inner_.stride[b])
      body(one, zero);
    else
      body(one, one);
  }

 private:
  struct Dim {
    int64_t size;
    Offsets stride;
  };
  struct Dims {
    std::array<Dim, Shape::kMaxRank> dim;
    size_t rank = 0;

    void push_back(const Dim& d) { dim[rank++] = d; }
    /// Adds an inner dimension, merged with the last one where both together are walked with a single stride.
    void append(const Dim& d) {
      bool merges = rank > 0;
      for (size_t m = 0; merges && m < d.stride.size(); ++m) merges = dim[rank - 1].stride[m] == d.stride[m] * d.size;
      if (merges)
        dim[rank - 1] = {dim[rank - 1].size * d.size, d.stride};
      else
        push_back(d);
    }
    int64_t count() const {
      int64_t n = 1;
      for (size_t i = 0; i < rank; ++i) n *= dim[i].size;
      return n;
    }
    Offsets offsets(int64_t index, Offsets at) const {
      for (size_t i = rank; i-- > 0; index /= dim[i].size)
        for (size_t m = 0; m < at.size(); ++m) at[m] += index % dim[i].size * dim[i].stride[m];
      return at;
    }
  };

  /// True where one target element stands for whole runs.
  bool folds_runs() const { return inner_.stride[target_] == 0; }

  Member target_;
  Dims kept_, folded_;  // outer dimensions, by whether the target has them
  Dim inner_ = {1, {1, 1, 1}};
};

/// small = scale times the sum over all elements of `big` that each of its elements stands for.
template <class T>
void sum_to(const T* big, const Shape& big_shape, T* small, const Shape& small_shape, T scale, bool add) {
  const BroadcastWalk walk(small_shape, {}, big_shape, BroadcastWalk::a);
  walk.each_tile([&](const BroadcastWalk::Tile& tile) {
    T sums[BroadcastWalk::kBlock];
    std::fill_n(sums, tile.width, T(0));
    tile.runs([&](const BroadcastWalk::Run& run) { tile.fold(big + run.out, run.length, sums); });
    for (int64_t j = 0; j < tile.width; ++j) put(small[tile.begin + j], scale * sums[j], add);
  });
}

/// big = scale times `small`, broadcast.
template <class T>
void expand(const T* small, const Shape& small_shape, T* big, const Shape& big_shape, T scale, bool add) {
  const BroadcastWalk walk(small_shape, {}, big_shape, BroadcastWalk::a);
  walk.each_tile([&](const BroadcastWalk::Tile& tile) {
    tile.runs([&](const BroadcastWalk::Run& run) {
      for (int64_t j = 0; j < run.length; ++j) put(big[run.out + j], scale * small[tile.begin + tile.column(j)], add);
    });
  });
}

}  // namespace sinkgrad::cpu
