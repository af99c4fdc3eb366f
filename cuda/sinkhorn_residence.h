// How a matrix lies on chip: in one block, or on sm_90 in a cluster of up to 8 blocks that share its rows and its columns' sums.
#pragma once
#include "cuda/sinkhorn_rows.h"

namespace sinkgrad::cuda {

constexpr int kMostBlocks = 8;  ///< of a cluster, on every device that has clusters

__device__ inline int64_t matrix_of_block() { return static_cast<int64_t>(blockIdx.x) / cluster_size(); }
__device__ inline void all_blocks_sync() {
  if (cluster_size() > 1)
    cluster_sync();
  else
    block_sync();
}

/// Calls f(j) for the columns that this thread finishes; together the threads of the cluster have all of them. A block alone gives
/// a thread the columns for which combine_teams() calls it.
template <class F>
__device__ void each_own_column(int64_t m, F f) {
  const int64_t step = static_cast<int64_t>(cluster_size()) * blockDim.x;
  for (int64_t j = static_cast<int64_t>(cluster_rank()) * blockDim.x + threadIdx.x; j < m; j += step) f(j);
}

/// The combination over the cluster, in every thread. All threads meet here, and see what was written before. `scratch` has an
/// element per warp, `slots` one per block; slots serve again once all blocks have met elsewhere.
template <class V, class Op>
__device__ V cluster_reduce(V v, Op op, const Shared<V>& scratch, const Shared<V>& slots) {
  v = block_reduce(v, op, scratch);
  if (cluster_size() == 1) return v;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < cluster_size()) cluster_peer(slots, peer)[cluster_rank()] = v;
  cluster_sync();
  v = slots[0];
  for (int block = 1; block < cluster_size(); ++block) v = op(v, static_cast<V>(slots[block]));
  return v;
}

/// The rows of this block, `rows` of them for every block but the last.
template <class T>
__device__ ResidentRows<T> resident_rows(const SinkhornCall<T>& call, const Shared<T>& held, int rows, int pitch) {
  const int64_t first = static_cast<int64_t>(cluster_rank()) * rows, left = call.n - first;
  return {call.matrix(matrix_of_block()), held, pitch, first, left < 0 ? 0 : left < rows ? left : rows};
}

struct Residence {
  Launch launch;
  int rows = 0, pitch = 0;  ///< of a block
};
/// The smallest cluster that holds a matrix, or a larger one where few matrices would leave the device idle. `shared` tells the
/// bytes of a block with `teams` teams besides its rows.
template <class T, int lanes, class F>
bool find_residence(const SinkhornCall<T>& call, int most_threads, F shared, Residence& r) {
  // Teams of 8 lanes read four rows at once, which a pitch of 8 modulo 16 spreads over all banks.
  const int64_t pitch = lanes == kWarp ? call.m : call.m + (24 - call.m % 16) % 16;
  const int64_t static_arrays = 2048, limit = static_cast<int64_t>(shared_limit()) - static_arrays;
  const int most = architecture() >= 90 ? kMostBlocks : 1;
  for (int blocks = 1; blocks <= most; blocks *= 2) {
    const int64_t rows = (call.n + blocks - 1) / blocks;
    const bool idle = 2 * blocks <= most && 2 * blocks * call.count <= multiprocessors() && rows >= 64;
    if (idle || rows * pitch > limit) continue;
    int threads = most_threads;
    while (threads > kWarp && threads * 2 > rows * lanes) threads /= 2;  // a team visits two to four rows, or more
    const size_t bytes = shared_bytes<T>(rows * pitch) + shared(threads / lanes);
    if (static_cast<int64_t>(bytes) > limit) continue;
    r = {{.blocks = call.count * blocks, .threads = threads, .shared_bytes = bytes, .cluster = blocks},
         static_cast<int>(rows),
         static_cast<int>(pitch)};
    return true;
  }
  return false;
}

/// Calls f.operator()<lanes, K>() with the team that has a row of m in registers; false: rows are too long.
template <class T, class F>
bool with_resident_team(int64_t m, F&& f) {
  if (m <= 32) return f.template operator()<8, 4>();
  if (m <= 256) return f.template operator()<32, 8>();
  if constexpr (kMostHeld<T> == 16)
    if (m <= 512) return f.template operator()<32, 16>();
  return false;
}

}  // namespace sinkgrad::cuda
