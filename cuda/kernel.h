// The one header of every CUDA kernel: a small vocabulary with two implementations. nvcc gets cuda/device.h (thin wrappers that
// compile to single instructions); the host compiler gets tests/simt/kernel.h, where the same words run on fibers, are checked
// for bounds and races, and may be made to fail. Kernels use nothing else of CUDA: no raw pointers to global or shared memory,
// no __syncthreads, no __shared__.
//
//   template <class T>
//   __global__ void row_sums(Span<const T> x, Span<T> y, int64_t m) {
//     STATIC_SHARED(T, scratch, 32);
//     T s = 0;
//     for (int64_t j = threadIdx.x; j < m; j += blockDim.x) s += x[blockIdx.x * m + j];
//     s = block_sum(s, scratch);  // cuda/reduce.h
//     if (threadIdx.x == 0) y[blockIdx.x] = s;
//   }
//   launch(KERNEL(row_sums<T>), {.blocks = n, .threads = 256}, span<const T>(x), span<T>(y), m);
//
// Words of both: Span<T> (global memory and its length), Shared<T> and SharedMemory (a block's memory), STATIC_SHARED,
// block_sync, warp_sync, warp_shuffle, warp_shuffle_xor, warp_shuffle_down, warp_any, warp_ballot (all 32 lanes take part: blocks
// are whole warps), cluster_sync, cluster_rank, cluster_size, cluster_peer, copy_async / copy_async_commit / copy_async_wait,
// load_vector, mma_tf32, mma_bf16, mma_f64, round_tf32, pack_bf16, exp2_fast, rounded_product, launch, takes_cluster, Scratch, multiprocessors,
// shared_limit.
#pragma once
#include "core/op.h"

#if defined(__CUDACC__)
#include "cuda/device.h"
#else
#include "simt/kernel.h"
#endif

namespace sinkgrad::cuda {

constexpr int kWarp = 32;

/// The memory of a view as a kernel argument.
template <class T>
Span<T> span(const View& v) {
  return {v.as<T>(), v ? v.shape.count() : 0};
}

/// A gradient as a kernel argument: put() stores, or adds where the tape asks for it.
template <class T>
struct GradSpan {
  Span<T> data;
  bool add = false;
  __device__ void put(int64_t i, T value) const {
    if (add)
      data[i] = data[i] + value;
    else
      data[i] = value;
  }
  explicit __device__ __host__ operator bool() const { return static_cast<bool>(data); }
};
template <class T>
GradSpan<T> span(const Grad& g) {
  return {span<T>(g.view), g.add};
}

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ inline int warps_per_block() { return static_cast<int>(blockDim.x) / kWarp; }
/// For grid-stride loops: for (int64_t i = thread_index(); i < count; i += thread_count()).
__device__ inline int64_t thread_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t thread_count() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

/// Enough blocks for a grid-stride loop over `items`, `per_block` of them at a time, and no more than fill the device.
inline Launch grid_stride(int64_t items, int threads = 256, int64_t per_block = 0) {
  if (per_block == 0) per_block = threads;
  const int64_t wanted = (items + per_block - 1) / per_block, full = static_cast<int64_t>(multiprocessors()) * (2048 / threads);
  return {.blocks = wanted < full ? wanted : full, .threads = threads};
}

}  // namespace sinkgrad::cuda
