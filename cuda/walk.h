// Several tensors walked together, each with strides of its own: broadcasting, permuted and partial copies, reductions.
// Neighbouring dimensions that every tensor passes with one stride become one, and offsets cost multiplications, no divisions.
#pragma once
#include <array>
#include <bit>
#include <utility>

#include "cuda/elementwise.h"
#include "ops/broadcast.h"

namespace sinkgrad::cuda {

/// Division by a number that the host knows, exact for dividends below 2^63. With s = ceil(log2 d) and m = ceil(2^(63 + s) / d)
/// the quotient is n m / 2^(63 + s): m is too large by less than 2^s / d, and n times that stays below 2^(63 + s) / d.
class Divisor {
  __extension__ using Wide = unsigned __int128;

 public:
  Divisor() = default;
  Divisor(int64_t d) : divisor_(d) {
    const auto n = static_cast<uint64_t>(d > 0 ? d : 1);
    shift_ = std::bit_width(n - 1);
    multiplier_ = static_cast<uint64_t>(((Wide{1} << (63 + shift_)) + n - 1) / n);
  }
  __device__ int64_t divide(int64_t n) const {
    return static_cast<int64_t>(static_cast<uint64_t>(Wide{2 * static_cast<uint64_t>(n)} * multiplier_ >> 64) >> shift_);
  }
  __host__ __device__ int64_t value() const { return divisor_; }

 private:
  int64_t divisor_ = 1;
  uint64_t multiplier_ = uint64_t{1} << 63;
  int shift_ = 0;
};

/// Element offsets into n tensors.
template <int n>
struct Offsets {
  int64_t at[n] = {};
};

/// A grid of dimensions, the innermost one first, and the strides with which n tensors pass it.
template <int n>
class Walk {
 public:
  using Strides = int64_t[n];
  Walk() = default;
  /// Broadcasts `shapes` to `big`.
  Walk(const Shape& big, const std::array<Shape, n>& shapes) {
    each_dimension(big, shapes, [&](int64_t size, const Strides& strides) { add(size, strides); });
  }
  /// body(size, strides) for each dimension of `big`, the innermost one first.
  template <class Body>
  static void each_dimension(const Shape& big, const std::array<Shape, n>& shapes, Body body) {
    auto walk = [&]<size_t... k>(std::index_sequence<k...>) {
      const BroadcastStrides all[] = {BroadcastStrides(shapes[k], big)...};
      for (int i = big.rank() - 1; i >= 0; --i) {
        const Strides strides = {all[k].stride[static_cast<size_t>(i)]...};
        body(big[i], strides);
      }
    };
    walk(std::make_index_sequence<n>());
  }

  /// Adds an outermost dimension.
  void add(int64_t size, const Strides& strides) {
    if (size == 1) return;
    bool merges = rank_ > 0;
    for (int k = 0; merges && k < n; ++k) merges = strides[k] == stride_[rank_ - 1][k] * size_[rank_ - 1].value();
    if (merges) {
      size_[rank_ - 1] = size_[rank_ - 1].value() * size;
      return;
    }
    size_[rank_] = size;
    for (int k = 0; k < n; ++k) stride_[rank_][k] = strides[k];
    ++rank_;
  }
  int64_t count() const {
    int64_t c = 1;
    for (int i = 0; i < rank_; ++i) c *= size_[i].value();
    return c;
  }
  int64_t inner_size() const { return size_[0].value(); }
  /// How far tensor k moves along the innermost dimension.
  int64_t inner_stride(int k) const { return stride_[0][k]; }

  /// Makes an index count packs of `width` elements, and returns true, if they never straddle a line and stay aligned.
  bool pack(int width) {
    if (inner_size() % width != 0) return false;
    for (int k = 0; k < n; ++k) {
      if (inner_stride(k) == 0) continue;
      if (inner_stride(k) != 1) return false;
      for (int i = 1; i < rank_; ++i)
        if (stride_[i][k] % width != 0) return false;
    }
    size_[0] = inner_size() / width;
    for (int k = 0; k < n; ++k) stride_[0][k] *= width;
    return true;
  }

  /// The offsets of element `index`, after `start`.
  __device__ Offsets<n> operator()(int64_t index, Offsets<n> start = {}) const {
#pragma unroll
    for (int i = 0; i < Shape::kMaxRank; ++i) {  // a fixed number of steps: the arrays stay in registers
      const bool last = i + 1 >= rank_;
      const int64_t rest = last ? 0 : size_[i].divide(index), position = last ? index : index - rest * size_[i].value();
#pragma unroll
      for (int k = 0; k < n; ++k) start.at[k] += position * stride_[i][k];
      if (last) break;
      index = rest;
    }
    return start;
  }

 private:
  int rank_ = 0;
  Divisor size_[Shape::kMaxRank];
  int64_t stride_[Shape::kMaxRank][n] = {};
};

/// What one tensor of a walk gives: packs, or one element repeated.
template <class T>
struct Operand {
  Span<const T> values;
  bool repeats = false;
  template <int width>
  __device__ Pack<T, width> load(int64_t i) const {
    if (width > 1 && repeats) {
      const T value = values[i];
      return each<Pack<T, width>>([=] { return value; });
    }
    return load_pack<width>(values, i);
  }
};

/// Loads of a thread that are under way at once.
template <int width>
constexpr int kWalkBatch = width == 1 ? 4 : 1;

/// y = f(x, ...) along the walk, where y is its tensor 0 and the x are the others.
template <class T, int width, class F, class... X>
__global__ void walk_kernel(Walk<1 + sizeof...(X)> walk, int64_t count, F f, GradSpan<T> y, X... x) {
  constexpr int kBatch = kWalkBatch<width>;
  const int64_t step = thread_count();
  auto value_at = [&]<size_t... k>(const Offsets<1 + sizeof...(X)>& o, std::index_sequence<k...>) {
    return each<Pack<T, width>>(f, x.template load<width>(o.at[k + 1])...);
  };
#pragma unroll 1
  for (int64_t i = thread_index(); i < count; i += kBatch * step) {
    Offsets<1 + sizeof...(X)> o[kBatch];  // all of them first: finding them takes branches, which would keep loads apart
    Pack<T, width> value[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) o[b] = walk(i + b * step < count ? i + b * step : i);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) value[b] = value_at(o[b], std::index_sequence_for<X...>());
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (i + b * step < count) put_pack(y, o[b].at[0], value[b]);
  }
}

/// Reads each x where f uses it and writes y, once; packs where the walk allows.
template <class F, class T, class... X>
void map(Walk<1 + sizeof...(X)> walk, const F& f, const GradSpan<T>& y, const Span<X>&... x) {
  const bool vectors = aligned(y.data, x...) && walk.pack(Vector<T>::kSize);
  const int64_t count = walk.count();
  with_width<T>(vectors, [&]<int width>() {
    int k = 0;
    auto operand = [&](const Span<const T>& values) { return Operand<T>{values, walk.inner_stride(++k) == 0}; };
    const std::tuple operands{operand(x)...};  // in braces: in this order
    constexpr int threads = 256;
    const Launch shape = grid_stride(count, threads, threads * kWalkBatch<width>);
    std::apply(
        [&](const auto&... o) { launch(KERNEL(walk_kernel<T, width, F, std::remove_cvref_t<decltype(o)>...>), shape, walk, count, f, y, o...); },
        operands);
  });
}

struct Copy {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
};
/// y = x; dimensions are those of y, tensor 0 of the walk is y and tensor 1 is x.
template <class T>
void copy(const Walk<2>& walk, const Span<const T>& x, const GradSpan<T>& y) {
  map(walk, Copy{}, y, x);
}

}  // namespace sinkgrad::cuda
