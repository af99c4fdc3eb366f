// Packs of neighbouring elements that are moved at once, and elementwise passes over contiguous memory.
// A pass reads each input and writes its output once, 16 bytes at a time where all of them are aligned.
#pragma once
#include <type_traits>

#include "cuda/kernel.h"

namespace sinkgrad::cuda {

template <class T>
struct Single {
  static constexpr int kSize = 1;
  T x[1];
};
/// One element, or 16 bytes of them.
template <class T, int width>
using Pack = std::conditional_t<width == 1, Single<T>, Vector<T>>;

template <int width, class T>
__device__ Pack<std::remove_const_t<T>, width> load_pack(const Span<T>& s, int64_t i) {
  if constexpr (width == 1)
    return {{s[i]}};
  else
    return load_vector(s, i);
}
template <class T>
__device__ void put_pack(const GradSpan<T>& s, int64_t i, Single<T> v) {
  s.put(i, v.x[0]);
}
template <class T>
__device__ void put_pack(const GradSpan<T>& s, int64_t i, Vector<T> v) {
  if (s.add) {
    const Vector<T> old = load_vector(s.data, i);
#pragma unroll
    for (int k = 0; k < v.kSize; ++k) v.x[k] = old.x[k] + v.x[k];
  }
  store_vector(s.data, i, v);
}

/// f of each element, as a pack of the type P.
template <class P, class F, class... Packs>
__device__ P each(const F& f, const Packs&... p) {
  P y;
#pragma unroll
  for (int k = 0; k < P::kSize; ++k) y.x[k] = f(p.x[k]...);
  return y;
}

/// Whether vectors can be loaded from the start of each.
template <class... T>
bool aligned(const Span<T>&... spans) {
  return ((reinterpret_cast<uintptr_t>(spans.data) % 16 == 0) && ...);
}
/// Calls f.operator()<width>() with the number of elements in a pack.
template <class T, class F>
void with_width(bool vectors, F&& f) {
  if (vectors)
    f.template operator()<Vector<T>::kSize>();
  else
    f.template operator()<1>();
}

/// The first `vectors` packs, then the elements that are left, or all.
template <class T, class F, class... X>
__global__ void map_kernel(F f, GradSpan<T> y, int64_t vectors, Span<X>... x) {
  constexpr int width = Vector<T>::kSize;
#pragma unroll 1  // else the number of rounds is found by a division
  for (int64_t v = thread_index(); v < vectors; v += thread_count()) put_pack(y, v * width, each<Vector<T>>(f, load_vector(x, v * width)...));
#pragma unroll 1
  for (int64_t i = vectors * width + thread_index(); i < y.data.count; i += thread_count()) y.put(i, f(static_cast<T>(x[i])...));
}

/// y_i = f(x_i, ...). Inputs that f does not use are not read.
template <class F, class T, class... X>
void map(const F& f, const GradSpan<T>& y, const Span<X>&... x) {
  constexpr int width = Vector<T>::kSize;
  const int64_t count = y.data.count, vectors = aligned(y.data, x...) ? count / width : 0;
  launch(KERNEL(map_kernel<T, F, X...>), grid_stride(vectors > 0 ? vectors : count), f, y, vectors, x...);
}

template <class T>
struct Constant {
  T value;
  __device__ T operator()() const { return value; }
};
template <class T>
void fill(const Span<T>& y, T value) {
  map(Constant<T>{value}, GradSpan<T>{y});
}

}  // namespace sinkgrad::cuda
