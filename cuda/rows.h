// Rows of a table by index, and back. An index outside the table gives a row of NaN and no gradient, so that a training run reports it.
//   gather_rows       y_t = x[i_t]: one pass over y and the rows.
//   scatter_rows_sum  dx[r] = sum of dy_t over all t with i_t = r, in the order of t, whatever the number of rows and however often one
//                     repeats: the positions are sorted by index (bitonic, keys are distinct), equal chunks of the sorted list are summed
//                     at the same time, and rows that lie in several chunks are finished last. Reads dy once; rows that no index names
//                     are touched only to make them zero.
#pragma once
#include <algorithm>

#include "cuda/walk.h"

namespace sinkgrad::cuda {

template <class T, int width>
__global__ void gather_rows_kernel(Span<const T> x, int64_t rows, Span<const int32_t> index, Divisor row_packs, Span<T> y) {
  const int64_t packs = index.count * row_packs.value();
#pragma unroll 1
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    const int64_t t = row_packs.divide(i), column = i - t * row_packs.value(), row = index[t];
    Pack<T, width> value;
    if (row >= 0 && row < rows)
      value = load_pack<width>(x, (row * row_packs.value() + column) * width);
    else
      value = each<Pack<T, width>>([] { return static_cast<T>(__builtin_nanf("")); });
    put_pack(GradSpan<T>{y}, i * width, value);
  }
}

/// y_t = x[index_t], where x is (rows, length) and y (number of indices, length).
template <class T>
void gather_rows(const Span<const T>& x, int64_t rows, int64_t length, const Span<const int32_t>& index, const Span<T>& y) {
  with_width<T>(aligned(x, y) && length % Vector<T>::kSize == 0, [&]<int width>() {
    launch(KERNEL(gather_rows_kernel<T, width>), grid_stride(y.count / width), x, rows, index, Divisor(length / width), y);
  });
}

/// An index and its position, ordered by index, then position. No row: the greatest.
struct RowKey {
  uint64_t bits = ~uint64_t{0};
  __device__ static RowKey of(int64_t row, int64_t position) { return {static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(position)}; }
  /// -1: none
  __device__ int64_t row() const { return static_cast<int32_t>(bits >> 32); }
  __device__ int64_t position() const { return static_cast<int64_t>(bits & 0xffffffffu); }
};

constexpr int kSortKeys = 2048;  // of a block, two per thread

/// Bitonic sort of 2 blockDim.x keys per block: the stages that make sorted runs of first .. last keys, as far as they stay within the
/// block. The first call makes the keys from the indices.
template <bool is_first>
__global__ void __launch_bounds__(kSortKeys / 2)
    sort_rows_kernel(Span<const int32_t> index, int64_t rows, Span<RowKey> keys, int64_t first, int64_t last) {
  STATIC_SHARED(RowKey, mine, kSortKeys);
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int64_t begin = int64_t{blockIdx.x} * 2 * threads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = t + half * threads;
    RowKey key;
    if constexpr (is_first) {
      const int64_t position = begin + i, row = position < index.count ? index[position] : -1;
      if (row >= 0 && row < rows) key = RowKey::of(row, position);
    } else {
      key = keys[begin + i];
    }
    mine[i] = key;
  }
  bool beyond_warp = true;  // a step whose distance is at most 32 stays within the 64 keys of a warp
  for (int64_t run = first; run <= last; run *= 2)
    for (int distance = static_cast<int>(run / 2 < threads ? run / 2 : threads); distance > 0; distance /= 2) {
      if (beyond_warp || distance > kWarp)
        block_sync();
      else
        warp_sync();
      beyond_warp = distance > kWarp;
      const int i = 2 * t - (t & (distance - 1)), j = i + distance;
      const RowKey a = mine[i], b = mine[j];
      const bool ascends = ((begin + i) & run) == 0;
      if ((a.bits > b.bits) == ascends) {
        mine[i] = b;
        mine[j] = a;
      }
    }
  block_sync();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = t + half * threads;
    keys[begin + i] = static_cast<RowKey>(mine[i]);
  }
}

/// One step between blocks.
template <class Key>
__global__ void sort_step_kernel(Span<Key> keys, int64_t run, int64_t distance) {
#pragma unroll 1
  for (int64_t t = thread_index(); t < keys.count / 2; t += thread_count()) {
    const int64_t i = 2 * t - (t & (distance - 1)), j = i + distance;
    const Key a = keys[i], b = keys[j];
    if ((a.bits > b.bits) == ((i & run) == 0)) {
      keys[i] = b;
      keys[j] = a;
    }
  }
}

/// The sorted keys of all indices that name a row; their number is the next power of two.
inline void sort_rows(const Span<const int32_t>& index, int64_t rows, const Span<RowKey>& keys) {
  const int64_t of_block = std::min<int64_t>(keys.count, kSortKeys);
  const Launch shape = {.blocks = keys.count / of_block, .threads = static_cast<int>(of_block / 2)};
  launch(KERNEL(sort_rows_kernel<true>), shape, index, rows, keys, int64_t{2}, of_block);
  for (int64_t run = 2 * of_block; run <= keys.count; run *= 2) {
    for (int64_t distance = run / 2; distance >= of_block; distance /= 2)
      launch(KERNEL(sort_step_kernel<RowKey>), grid_stride(keys.count / 2), keys, run, distance);
    launch(KERNEL(sort_rows_kernel<false>), shape, index, rows, keys, run, run);
  }
}

/// What scatter_rows_sum's kernels share.
template <class T>
struct RowSums {
  static constexpr int kChunk = 32;
  Span<const RowKey> keys;
  int64_t count = 0;  ///< of positions
  Divisor row_packs;
  Span<T> head, tail;  ///< of each chunk: the part of a row that began before, of one that goes on after it
  GradSpan<T> dx;

  __host__ __device__ int64_t chunks() const { return (count + kChunk - 1) / kChunk; }
  __device__ int64_t end(int64_t chunk) const { return (chunk + 1) * kChunk < count ? (chunk + 1) * kChunk : count; }
  /// -1 outside the list
  __device__ int64_t row(int64_t position) const { return position >= 0 && position < count ? static_cast<RowKey>(keys[position]).row() : -1; }
};

template <class P>
__device__ void add_pack(P& sum, const P& x) {
  sum = each<P>([](auto a, auto b) { return a + b; }, sum, x);
}

/// A thread sums a pack of columns of a chunk's rows.
template <class T, int width>
__global__ void sum_chunks_kernel(RowSums<T> s, Span<const T> dy) {
  constexpr int kBatch = 4;  // loads under way at once
  const int64_t packs = s.row_packs.value();
#pragma unroll 1
  for (int64_t i = thread_index(); i < s.chunks() * packs; i += thread_count()) {
    const int64_t chunk = s.row_packs.divide(i), column = (i - chunk * packs) * width, length = packs * width;
    const int64_t begin = chunk * s.kChunk, end = s.end(chunk);
    int64_t row = s.row(begin);
    bool began_before = s.row(begin - 1) == row;
    Pack<T, width> sum = {};
#pragma unroll 1
    for (int64_t k = begin; k < end; k += kBatch) {
      Pack<T, width> x[kBatch] = {};
      int64_t next[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        next[b] = s.row(k + b + 1);
        if (k + b < end && s.row(k + b) >= 0) x[b] = load_pack<width>(dy, static_cast<RowKey>(s.keys[k + b]).position() * length + column);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (k + b >= end || row < 0) continue;
        add_pack(sum, x[b]);
        if (next[b] == row && k + b + 1 < end) continue;
        if (began_before)
          put_pack(GradSpan<T>{s.head}, chunk * length + column, sum);
        else if (next[b] == row)
          put_pack(GradSpan<T>{s.tail}, chunk * length + column, sum);
        else
          put_pack(s.dx, row * length + column, sum);
        sum = {};
        began_before = false;
        row = next[b];
      }
    }
  }
}

/// Rows that begin in a chunk and go on after it.
template <class T, int width>
__global__ void join_chunks_kernel(RowSums<T> s) {
  const int64_t packs = s.row_packs.value();
#pragma unroll 1
  for (int64_t i = thread_index(); i < (s.chunks() - 1) * packs; i += thread_count()) {
    const int64_t chunk = s.row_packs.divide(i), column = (i - chunk * packs) * width, length = packs * width;
    const int64_t begin = chunk * s.kChunk, row = s.row(s.end(chunk) - 1);
    if (row < 0 || s.row(s.end(chunk)) != row || s.row(begin - 1) == row) continue;
    int64_t low = s.end(chunk), high = s.count;  // the row ends before the first position in low+1 .. high that holds another one
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (s.row(middle) == row ? low : high) = middle;
    }
    Pack<T, width> sum = load_pack<width>(s.tail, chunk * length + column);
#pragma unroll 4
    for (int64_t c = chunk + 1; c <= low / s.kChunk; ++c) add_pack(sum, load_pack<width>(s.head, c * length + column));
    put_pack(s.dx, row * length + column, sum);
  }
}

/// dx[index_t] += dy_t for all t, where dx is (rows, length) and dy (number of indices, length); without `add` dx starts from zero.
template <class T>
void scatter_rows_sum(const Span<const T>& dy, const Span<const int32_t>& index, int64_t rows, int64_t length, const GradSpan<T>& dx) {
  const int64_t count = index.count;
  require(count < int64_t{1} << 32, "gradient of a table: fewer than 2^32 indices are supported, got ", count);
  if (!dx.add) fill(dx.data, T(0));
  if (dy.count == 0) return;
  Scratch scratch;
  const auto padded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(count, 2 * kWarp))));
  const Span<RowKey> keys = scratch.take<RowKey>(padded);
  sort_rows(index, rows, keys);
  RowSums<T> s = {.keys = keys, .count = count, .dx = dx};
  s.head = scratch.take<T>(s.chunks() * length);
  s.tail = scratch.take<T>(s.chunks() * length);
  with_width<T>(aligned(dy, s.head, s.tail, dx.data) && length % Vector<T>::kSize == 0, [&]<int width>() {
    s.row_packs = Divisor(length / width);
    launch(KERNEL(sum_chunks_kernel<T, width>), grid_stride(s.chunks() * s.row_packs.value()), s, dy);
    launch(KERNEL(join_chunks_kernel<T, width>), grid_stride((s.chunks() - 1) * s.row_packs.value()), s);
  });
}

}  // namespace sinkgrad::cuda
