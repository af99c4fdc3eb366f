// The kernel vocabulary on a GPU: each word is an instruction or two.
#pragma once
#include <cuda_runtime.h>

#include <tuple>
#include <type_traits>

#include "cuda/context.h"
#include "cuda/launch.h"

namespace sinkgrad::cuda {

/// Global memory and its number of elements; indices are checked on the host executor only.
template <class T>
struct Span {
  T* data = nullptr;
  int64_t count = 0;
  __device__ T& operator[](int64_t i) const { return data[i]; }
  explicit __device__ __host__ operator bool() const { return data != nullptr; }
  /// Elements begin .. begin+n-1.
  __device__ __host__ Span part(int64_t begin, int64_t n) const { return {data + begin, n}; }
  template <class U = T>
  requires(!std::is_const_v<U>) __device__ __host__ operator Span<const U>() const { return {data, count}; }
};

/// Memory of a block (or, through cluster_peer, of another block of the cluster).
template <class T>
struct Shared {
  T* data = nullptr;
  int count = 0;
  __device__ T& operator[](int i) const { return data[i]; }
  __device__ Shared part(int begin, int n) const { return {data + begin, n}; }
};

/// Hands out the launch's shared_bytes, each array 16-byte aligned; every thread of the block must ask in the same order.
class SharedMemory {
 public:
  template <class T>
  __device__ Shared<T> take(int count) {
    extern __shared__ __align__(128) char sinkgrad_shared_memory[];
    T* p = reinterpret_cast<T*>(sinkgrad_shared_memory + offset_);
    offset_ += (static_cast<unsigned>(count) * sizeof(T) + 15u) / 16u * 16u;
    return {p, count};
  }

 private:
  unsigned offset_ = 0;
};
/// Bytes that SharedMemory uses for `count` elements.
template <class T>
constexpr size_t shared_bytes(int64_t count) {
  return (static_cast<size_t>(count) * sizeof(T) + 15) / 16 * 16;
}

#define STATIC_SHARED(T, name, count) \
  __shared__ T name##_storage[count]; \
  const ::sinkgrad::cuda::Shared<T> name { name##_storage, count }

__device__ inline void block_sync() { __syncthreads(); }
__device__ inline void warp_sync() { __syncwarp(); }
constexpr unsigned kAllLanes = 0xffffffffu;
/// Any trivially copyable value; structures go word by word.
template <class T, class Exchange>
__device__ T shuffle_words(T v, Exchange exchange) {
  if constexpr (std::is_arithmetic_v<T>) {
    return exchange(v);
  } else {
    unsigned words[sizeof(T) / sizeof(unsigned)];
    memcpy(words, &v, sizeof(T));
#pragma unroll
    for (unsigned& w : words) w = exchange(w);
    memcpy(&v, words, sizeof(T));
    return v;
  }
}
template <class T>
__device__ T warp_shuffle(T v, int lane) {
  return shuffle_words(v, [=](auto w) { return __shfl_sync(kAllLanes, w, lane); });
}
template <class T>
__device__ T warp_shuffle_xor(T v, int mask) {
  return shuffle_words(v, [=](auto w) { return __shfl_xor_sync(kAllLanes, w, mask); });
}
template <class T>
__device__ T warp_shuffle_down(T v, int delta) {
  return shuffle_words(v, [=](auto w) { return __shfl_down_sync(kAllLanes, w, delta); });
}
__device__ inline bool warp_any(bool p) { return __any_sync(kAllLanes, p) != 0; }
__device__ inline unsigned warp_ballot(bool p) { return __ballot_sync(kAllLanes, p); }

// Clusters exist from sm_90 on; a cluster of one block is a block everywhere.
__device__ inline void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
__device__ inline int cluster_rank() {
#if __CUDA_ARCH__ >= 900
  unsigned r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return static_cast<int>(r);
#else
  return 0;
#endif
}
__device__ inline int cluster_size() {
#if __CUDA_ARCH__ >= 900
  unsigned r;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(r));
  return static_cast<int>(r);
#else
  return 1;
#endif
}
/// The same array in block `rank` of the cluster.
template <class T>
__device__ Shared<T> cluster_peer(const Shared<T>& s, int rank) {
#if __CUDA_ARCH__ >= 900
  T* p;
  asm("mapa.u64 %0, %1, %2;" : "=l"(p) : "l"(s.data), "r"(rank));
  return {p, s.count};
#else
  return s;
#endif
}

/// 16 bytes of elements loaded or stored at once; `i` and the span's start must be aligned to them.
template <class T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T x[kSize];
};
template <class T>
__device__ Vector<std::remove_const_t<T>> load_vector(const Span<T>& s, int64_t i) {
  return *reinterpret_cast<const Vector<std::remove_const_t<T>>*>(s.data + i);
}
template <class T>
__device__ void store_vector(const Span<T>& s, int64_t i, const Vector<T>& v) {
  *reinterpret_cast<Vector<T>*>(s.data + i) = v;
}
template <class T>
__device__ Vector<T> load_vector(const Shared<T>& s, int i) {
  return *reinterpret_cast<const Vector<T>*>(s.data + i);
}
template <class T>
__device__ void store_vector(const Shared<T>& s, int i, const Vector<T>& v) {
  *reinterpret_cast<Vector<T>*>(s.data + i) = v;
}

/// Starts a copy of 16 bytes to shared memory; both places 16-byte aligned. The data may be read by the issuing thread after
/// copy_async_wait, by others after a barrier that follows it.
template <class T>
__device__ void copy_async(const Shared<T>& to, int i, const Span<const T>& from, int64_t j) {
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to.data + i));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from.data + j) : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `pending` of this thread's committed groups are on their way.
template <int pending>
__device__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Tensor cores. Lane l of a warp holds, with g = l / 4 and t = l % 4 (PTX ISA, "matrix fragments for mma"):
//   C (16x8)   c[2h + i]: row g + 8h, column 2t + i
//   tf32  A (16x8)  a[2k + h]: row g + 8h, column t + 4k;   B (8x8)  b[k]: row t + 4k, column g
//   bf16  A (16x16) a[2k + h]: row g + 8h, columns 2t + 8k and the next;  B (16x8) b[k]: rows 2t + 8k and the next, column g
//   f64   A (8x4)   a: row g, column t;  B (4x8) b: row t, column g;  C (8x8) c[i]: row g, column 2t + i
__device__ inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_f64(double (&c)[2], double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"(c[0]), "+d"(c[1]) : "d"(a), "d"(b));
}
/// The bits of x rounded to tf32: 10 bits of mantissa, ties away from zero.
__device__ inline uint32_t round_tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}
/// Two floats as bf16 (ties to even), `low` in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
/// 2^x to 2 ulp in one instruction; 0 below -126.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline double exp2_fast(double x) { return exp2(x); }
/// x y rounded by itself, never fused with an addition that follows.
__device__ inline float rounded_product(float x, float y) { return __fmul_rn(x, y); }
__device__ inline double rounded_product(double x, double y) { return __dmul_rn(x, y); }
__device__ inline float bits_to_float(uint32_t x) { return __uint_as_float(x); }
__device__ inline uint32_t float_to_bits(float x) { return __float_as_uint(x); }

/// Whether the blocks of such a launch can run together as one cluster; see Context::takes_cluster.
template <class... P>
bool takes_cluster(const Kernel<P...>& kernel, const Launch& shape) {
  return context().takes_cluster(reinterpret_cast<const void*>(kernel.function), shape);
}

/// Runs a kernel on the context's stream. Throws DeviceError naming kernel, grid, block and place.
template <class... P, class... A>
void launch(const Kernel<P...>& kernel, const Launch& shape, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
  if (shape.blocks == 0 || context().launches_are_suppressed()) return;
  std::tuple<std::remove_cv_t<P>...> values{std::forward<A>(arguments)...};
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {&value..., nullptr};
        context().launch(reinterpret_cast<const void*>(kernel.function), kernel.name, kernel.place, shape, pointers);
      },
      values);
}

}  // namespace sinkgrad::cuda
