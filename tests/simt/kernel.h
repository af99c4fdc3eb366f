// The kernel vocabulary on the host: the words of cuda/device.h, executed by tests/simt/executor.h.
#pragma once
#include <math.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "cuda/context.h"
#include "cuda/launch.h"
#include "simt/executor.h"
#include "simt/stream.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::sinkgrad::simt::g_thread->thread)
#define blockIdx (::sinkgrad::simt::g_thread->block)
#define blockDim (::sinkgrad::simt::g_thread->block_size)
#define gridDim (::sinkgrad::simt::g_thread->grid_size)

namespace sinkgrad::cuda {

using Place = std::source_location;

/// An index that remembers where in the source it is used.
struct Index {
  template <class I>
  requires std::is_convertible_v<I, int64_t> Index(const I& i, Place p = Place::current()) : value(static_cast<int64_t>(i)), place(p) {}
  int64_t value;
  Place place;
};

/// What the executor keeps a record of, word by word.
template <class T>
constexpr bool is_storable = std::is_trivially_copyable_v<T> && sizeof(T) % 4 == 0;

/// An element that tells the executor when it is read and when it is written.
template <class T, class Memory>
class Element {
 public:
  Element(const Memory& memory, const Index& index) : memory_(memory), index_(index) {}
  Element(const Element&) = default;
  operator T() const { return memory_.read(index_); }
  const Element& operator=(T value) const {
    memory_.write(index_, value);
    return *this;
  }
  const Element& operator=(const Element& other) const { return *this = static_cast<T>(other); }
  const Element& operator+=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) + value); }
  const Element& operator-=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) - value); }
  const Element& operator*=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) * value); }

 private:
  Memory memory_;
  Index index_;
};

template <class T>
struct Span {
  using Value = std::remove_const_t<T>;
  static_assert(is_storable<Value>);
  T* data = nullptr;
  int64_t count = 0;

  auto operator[](Index i) const {
    if constexpr (std::is_const_v<T>)
      return read(i);
    else
      return Element<T, Span>(*this, i);
  }
  explicit operator bool() const { return data != nullptr; }
  Span part(int64_t begin, int64_t n, Place p = Place::current()) const {
    if (begin < 0 || n < 0 || begin + n > count)
      simt::fail(simt::Fault::bounds, cat("part of elements ", begin, "..", begin + n - 1, " of a span of ", count, " elements"), &p);
    return {data + begin, n};
  }
  template <class U = T>
  requires(!std::is_const_v<U>) operator Span<const U>() const { return {data, count}; }

  Value read(const Index& i) const {
    check(i);
    simt::read_global(data + i.value, sizeof(T), i.value, i.place);
    return data[i.value];
  }
  void write(const Index& i, Value value) const {
    static_assert(!std::is_const_v<T>);
    check(i);
    simt::write_global(data + i.value, sizeof(T), i.value, i.place);
    data[i.value] = value;
  }
  /// Refuses 16 bytes from element i on that are not inside and aligned.
  void check_vector(const char* word, const Index& i) const {
    constexpr int64_t n = 16 / sizeof(T);
    if (i.value < 0 || i.value + n > count)
      simt::fail(simt::Fault::bounds, cat(word, " of elements ", i.value, "..", i.value + n - 1, " of a span of ", count, " elements"), &i.place);
    if (reinterpret_cast<uintptr_t>(data + i.value) % 16)
      simt::fail(simt::Fault::alignment, cat(word, " at element ", i.value, " of a span, which is not at a multiple of 16 bytes"), &i.place);
  }

 private:
  void check(const Index& i) const {
    if (i.value < 0 || i.value >= count) [[unlikely]]
      simt::fail(simt::Fault::bounds, cat("index ", i.value, " of a span of ", count, " elements"), &i.place);
    if (reinterpret_cast<uintptr_t>(data) % alignof(T)) [[unlikely]]
      simt::fail(simt::Fault::alignment, cat("a span of elements of ", sizeof(T), " bytes at an address that is no multiple of ", alignof(T)),
                 &i.place);
  }
};

template <class T>
struct Shared {
  static_assert(is_storable<T>);
  int block = 0;      // within the cluster
  size_t offset = 0;  // bytes
  int count = 0;

  Element<T, Shared> operator[](Index i) const { return {*this, i}; }
  Shared part(int begin, int n, Place p = Place::current()) const {
    if (begin < 0 || n < 0 || begin + n > count)
      simt::fail(simt::Fault::bounds, cat("part of elements ", begin, "..", begin + n - 1, " of a shared array of ", count, " elements"), &p);
    return {block, at(begin), n};
  }
  T read(const Index& i) const {
    check(i);
    T value;
    std::memcpy(&value, simt::read_shared(block, at(i.value), sizeof(T), i.value, i.place), sizeof(T));
    return value;
  }
  void write(const Index& i, T value) const {
    check(i);
    std::memcpy(simt::write_shared(block, at(i.value), sizeof(T), i.value, i.place), &value, sizeof(T));
  }
  size_t at(int64_t i) const { return offset + static_cast<size_t>(i) * sizeof(T); }
  void check_vector(const char* word, const Index& i) const {
    constexpr int64_t n = 16 / sizeof(T);
    if (i.value < 0 || i.value + n > count)
      simt::fail(simt::Fault::bounds, cat(word, " of elements ", i.value, "..", i.value + n - 1, " of a shared array of ", count, " elements"),
                 &i.place);
    if (at(i.value) % 16)
      simt::fail(simt::Fault::alignment, cat(word, " at element ", i.value, " of a shared array, which is not at a multiple of 16 bytes"), &i.place);
  }

 private:
  void check(const Index& i) const {
    if (i.value < 0 || i.value >= count) [[unlikely]]
      simt::fail(simt::Fault::bounds, cat("index ", i.value, " of a shared array of ", count, " elements"), &i.place);
  }
};

class SharedMemory {
 public:
  template <class T>
  Shared<T> take(int count, Place p = Place::current()) {
    const size_t at = offset_;
    offset_ += (static_cast<size_t>(count) * sizeof(T) + 15) / 16 * 16;
    if (offset_ > simt::dynamic_shared_bytes())
      simt::fail(simt::Fault::shared_size, cat("SharedMemory hands out ", offset_, " bytes, the launch asked for ", simt::dynamic_shared_bytes()),
                 &p);
    return {simt::g_thread->block_in_cluster, at, count};
  }

 private:
  size_t offset_ = 0;
};
template <class T>
constexpr size_t shared_bytes(int64_t count) {
  return (static_cast<size_t>(count) * sizeof(T) + 15) / 16 * 16;
}

template <class T>
Shared<T> make_static_shared(int count, Place place) {
  return {simt::g_thread->block_in_cluster, simt::static_shared(static_cast<size_t>(count) * sizeof(T), place), count};
}
#define STATIC_SHARED(T, name, count) \
  const ::sinkgrad::cuda::Shared<T> name = ::sinkgrad::cuda::make_static_shared<T>(count, std::source_location::current())

inline void block_sync(Place p = Place::current()) { simt::block_barrier(p); }
inline void warp_sync(Place p = Place::current()) { simt::warp_barrier(p); }
inline void cluster_sync(Place p = Place::current()) { simt::cluster_barrier(p); }
inline int cluster_rank() { return simt::g_thread->block_in_cluster; }
inline int cluster_size() { return simt::g_thread->cluster_blocks; }
template <class T>
Shared<T> cluster_peer(const Shared<T>& s, int rank, Place p = Place::current()) {
  if (rank < 0 || rank >= cluster_size())
    simt::fail(simt::Fault::bounds, cat("cluster_peer ", rank, " of a cluster of ", cluster_size(), " blocks"), &p);
  return {rank, s.offset, s.count};
}

/// The values of all lanes.
template <class T>
const T* exchange(simt::WarpOp op, const T& mine, const Place& p) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= simt::kExchangeBytes);
  return static_cast<const T*>(simt::warp_exchange(op, &mine, sizeof(T), p));
}
template <class T>
T warp_shuffle(T v, int lane, Place p = Place::current()) {
  return exchange(simt::WarpOp::shuffle, v, p)[lane & 31];
}
template <class T>
T warp_shuffle_xor(T v, int mask, Place p = Place::current()) {
  const int me = static_cast<int>(threadIdx.x) & 31;
  return exchange(simt::WarpOp::shuffle, v, p)[(me ^ mask) & 31];
}
template <class T>
T warp_shuffle_down(T v, int delta, Place p = Place::current()) {
  const int me = static_cast<int>(threadIdx.x) & 31, from = me + delta < 32 ? me + delta : me;
  return exchange(simt::WarpOp::shuffle, v, p)[from];
}
inline unsigned warp_ballot(bool predicate, Place p = Place::current()) {
  const bool* all = exchange(simt::WarpOp::vote, predicate, p);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(all[lane]) << lane;
  return bits;
}
inline bool warp_any(bool predicate, Place p = Place::current()) { return warp_ballot(predicate, p) != 0; }

template <class T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T x[kSize];
};
template <class T>
Vector<std::remove_const_t<T>> load_vector(const Span<T>& s, int64_t i, Place p = Place::current()) {
  Vector<std::remove_const_t<T>> v;
  s.check_vector("load_vector", {i, p});
  for (int k = 0; k < v.kSize; ++k) v.x[k] = s.read({i + k, p});
  return v;
}
template <class T>
void store_vector(const Span<T>& s, int64_t i, const Vector<T>& v, Place p = Place::current()) {
  s.check_vector("store_vector", {i, p});
  for (int k = 0; k < v.kSize; ++k) s.write({i + k, p}, v.x[k]);
}
template <class T>
Vector<T> load_vector(const Shared<T>& s, int i, Place p = Place::current()) {
  Vector<T> v;
  s.check_vector("load_vector", {i, p});
  for (int k = 0; k < v.kSize; ++k) v.x[k] = s.read({i + k, p});
  return v;
}
template <class T>
void store_vector(const Shared<T>& s, int i, const Vector<T>& v, Place p = Place::current()) {
  s.check_vector("store_vector", {i, p});
  for (int k = 0; k < v.kSize; ++k) s.write({i + k, p}, v.x[k]);
}

template <class T>
void copy_async(const Shared<T>& to, int i, const Span<const T>& from, int64_t j, Place p = Place::current()) {
  to.check_vector("copy_async to", {i, p});
  from.check_vector("copy_async", {j, p});
  simt::copy_async(to.block, to.at(i), from.data + j, i, j, p);
}
inline void copy_async_commit() { simt::copy_async_commit(); }
template <int pending>
void copy_async_wait(Place p = Place::current()) {
  simt::copy_async_wait(pending, p);
}

inline uint32_t float_to_bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float bits_to_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float rounded_product(float x, float y) { return x * y; }  // nothing is fused here
inline double rounded_product(double x, double y) { return x * y; }
inline uint32_t round_tf32(float x) {
  if (std::isnan(x)) return 0x7fffffffu;
  if (std::isinf(x)) return float_to_bits(x);
  return (float_to_bits(x) + 0x1000u) & ~0x1fffu;
}
inline uint32_t round_bf16(float x) {
  const uint32_t bits = float_to_bits(x);
  if (std::isnan(x)) return 0x7fff;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline uint32_t pack_bf16(float low, float high) { return round_bf16(low) | round_bf16(high) << 16; }
inline float exp2_fast(float x) { return x < -126 ? 0.0f : std::exp2(x); }
inline double exp2_fast(double x) { return std::exp2(x); }
inline float rsqrt(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }

// The products of a warp, element by element from the fragments of all lanes; layouts as in cuda/device.h.
struct Fragments {
  uint32_t a[4], b[2];
};
inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place p = Place::current()) {
  const Fragments* all = exchange(simt::WarpOp::matrix, Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, p);
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane / 4, t = lane % 4;
  auto tf32 = [](uint32_t x) { return bits_to_float(x & ~0x1fffu); };  // the hardware ignores the lower bits
  for (int h = 0; h < 2; ++h)
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 8; ++k) c[2 * h + i] += tf32(all[g * 4 + k % 4].a[2 * (k / 4) + h]) * tf32(all[(2 * t + i) * 4 + k % 4].b[k / 4]);
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place p = Place::current()) {
  const Fragments* all = exchange(simt::WarpOp::matrix, Fragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, p);
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane / 4, t = lane % 4;
  auto half = [](uint32_t x, int k) { return bits_to_float(k % 2 ? x & 0xffff0000u : x << 16); };
  for (int h = 0; h < 2; ++h)
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 16; ++k)
        c[2 * h + i] += half(all[g * 4 + k % 8 / 2].a[2 * (k / 8) + h], k) * half(all[(2 * t + i) * 4 + k % 8 / 2].b[k / 8], k);
}
inline void mma_f64(double (&c)[2], double a, double b, Place p = Place::current()) {
  struct Fragment {
    double a, b;
  };
  const Fragment* all = exchange(simt::WarpOp::matrix, Fragment{a, b}, p);
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane / 4, t = lane % 4;
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 4; ++k) c[i] += all[g * 4 + k].a * all[(2 * t + i) * 4 + k].b;
}

template <class... P, class... A>
void launch(const Kernel<P...>& kernel, const Launch& shape, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
  if (shape.blocks == 0 || context().launches_are_suppressed()) return;
  const std::tuple<std::remove_cv_t<P>...> values{std::forward<A>(arguments)...};
  simt::enqueue([=] { simt::run(kernel.name, kernel.place, shape, [&] { std::apply(kernel.function, values); }); });
}

template <class... P>
bool takes_cluster(const Kernel<P...>&, const Launch& shape) {
  return context().takes_cluster(nullptr, shape);
}

}  // namespace sinkgrad::cuda
