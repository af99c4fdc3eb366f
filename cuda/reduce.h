// Reductions over a warp, a block or a single thread, in a fixed order: the same bits every time.
#pragma once
#include "cuda/kernel.h"

namespace sinkgrad::cuda {

template <class T>
__device__ constexpr T infinity() {
  if constexpr (sizeof(T) == 4)
    return static_cast<T>(__builtin_huge_valf());
  else
    return static_cast<T>(__builtin_huge_val());
}
template <class T>
__device__ constexpr T not_a_number() {
  return static_cast<T>(__builtin_nanf(""));
}

template <class T>
__device__ T maximum(T a, T b) {
  return a > b ? a : b;
}

/// A running log-sum-exp: `sum` counts in units of exp(max). Starts as that of no elements. Elements of -inf add nothing, +inf and
/// NaN give what log(sum of exp) gives: +inf, or NaN as soon as there is a NaN. max is never NaN.
template <class T>
struct LogSum {
  T max = -infinity<T>(), sum = 0;
  /// Adds exp(x) of n elements: one exp for each and one for the sum so far.
  template <int n>
  __device__ void add(const T (&x)[n]) {
    T top = max;
#pragma unroll
    for (int u = 0; u < n; ++u) top = fmax(top, x[u]);
    const T shift = fabs(top) < infinity<T>() ? top : T(0);  // an infinite shift would make NaN of x - shift
    T added = 0;
#pragma unroll
    for (int u = 0; u < n; ++u) added += exp(x[u] - shift);
    sum = in_units_of(top) + added;
    max = top;
  }
  __device__ void add(T x) {
    const T one[1] = {x};
    add(one);
  }
  /// The sum in units of exp(top), top >= max.
  __device__ T in_units_of(T top) const { return top == max ? sum : sum * exp(max - top); }
  /// log of the sum; -inf for none.
  __device__ T log_sum() const { return max + log(sum); }
};

/// The operations of a reduction: combine(a, b), a standing before b.
struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
/// NaN wins.
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
/// NaN loses: for the shift of a log-sum-exp, whose sum shows it.
struct Top {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return fmax(a, b);
  }
};
struct LogSumMerge {
  template <class T>
  __device__ LogSum<T> operator()(const LogSum<T>& a, const LogSum<T>& b) const {
    const T top = fmax(a.max, b.max);
    return {top, a.in_units_of(top) + b.in_units_of(top)};
  }
};

/// The combination over the `size` adjacent lanes to which a lane belongs, in each of them; with a stride, over those lanes among
/// them that are a multiple of it apart. Both are powers of two.
template <class Op, class T>
__device__ T warp_reduce(T v, Op op, int size = kWarp, int stride = 1) {
#pragma unroll
  for (int mask = size / 2; mask >= stride; mask /= 2) {
    const T other = warp_shuffle_xor(v, mask);
    const bool upper = (lane_index() & mask) != 0;  // the lower lane stands first: the same bits in both
    v = op(upper ? other : v, upper ? v : other);
  }
  return v;
}

/// The combination over the block, in every thread; with a stride (a power of two, at most 32) over the threads that are a multiple
/// of it apart. `scratch` has `stride` elements per warp and may be used again at once.
template <class Op, class T>
__device__ T block_reduce(T v, Op op, const Shared<T>& scratch, int stride = 1) {
  v = warp_reduce(v, op, kWarp, stride);
  const int lane = lane_index(), column = lane % stride;
  if (lane < stride) scratch[warp_index() * stride + lane] = v;
  block_sync();
  v = scratch[column];
  for (int w = 1; w < warps_per_block(); ++w) v = op(v, static_cast<T>(scratch[w * stride + column]));
  block_sync();
  return v;
}

template <class T>
__device__ T warp_sum(T v) {
  return warp_reduce(v, Sum{});
}
template <class T>
__device__ T warp_max(T v) {
  return warp_reduce(v, Max{});
}
template <class T>
__device__ T block_sum(T v, const Shared<T>& scratch) {
  return block_reduce(v, Sum{}, scratch);
}

}  // namespace sinkgrad::cuda
